package policy

import (
	"strings"
	"unicode"

	"golang.org/x/net/idna"
)

// asciiLike are letters that look like one of ASCII in the fonts of most terminals: of Cyrillic, Greek, Armenian, and
// further ones of Latin. People seldom mean to write a name with such letters.
var asciiLike = map[rune]byte{
	'а': 'a', 'с': 'c', 'ԁ': 'd', 'е': 'e', 'һ': 'h', 'і': 'i', 'ј': 'j', 'к': 'k', 'ӏ': 'l', 'о': 'o', 'р': 'p', 'ԛ': 'q', 'ѕ': 's', 'ԝ': 'w', 'х': 'x', 'у': 'y', 'ѵ': 'v',
	'α': 'a', 'ι': 'i', 'κ': 'k', 'ν': 'v', 'ο': 'o', 'ρ': 'p', 'υ': 'u', 'ϳ': 'j',
	'ց': 'g', 'հ': 'h', 'օ': 'o', 'ո': 'n', 'ս': 'u', 'զ': 'q',
	'ɑ': 'a', 'ɡ': 'g', 'ı': 'i',
}

// foreign are scripts that no language writes within one word together with Latin.
var foreign = []*unicode.RangeTable{unicode.Cyrillic, unicode.Greek, unicode.Armenian, unicode.Cherokee, unicode.Hebrew, unicode.Arabic, unicode.Georgian}

// lookalike says of a name in Unicode what is deceptive about it, or nothing: the ASCII name that it looks like, or a label
// that mixes scripts. The result is ASCII.
func lookalike(name string) string {
	var like strings.Builder
	mixed := ""
	for label := range strings.SplitSeq(name, ".") {
		if like.Len() > 0 {
			like.WriteByte('.')
		}
		var latin, other bool
		for _, c := range label {
			latin = latin || unicode.Is(unicode.Latin, c)
			other = other || unicode.In(c, foreign...)
			if ascii, ok := asciiLike[unicode.ToLower(c)]; ok {
				c = rune(ascii)
			}
			like.WriteRune(c)
		}
		if latin && other {
			mixed = label
		}
	}
	switch {
	case isASCII(like.String()) && !isASCII(name):
		return "looks like " + like.String() + ", and is another name"
	case mixed != "":
		return "mixes letters of several scripts in " + quoteBriefly(mixed)
	}
	return ""
}

// Deceptive says what is deceptive about the name of a pattern to a person who sees its letters, or nothing: it looks like
// an ASCII name, or a label mixes scripts.
func (p Pattern) Deceptive() string {
	if !strings.Contains(p.name, "xn--") {
		return ""
	}
	name, err := idna.Punycode.ToUnicode(p.name)
	if err != nil {
		return ""
	}
	return lookalike(name)
}
