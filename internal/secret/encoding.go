package secret

import (
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
)

// formsOf returns the encodings of the text and of what it is base64 of, sorted,
// each once. None has fewer than minText bytes.
func formsOf(template, text string) []string {
	all := encodings(text)
	for _, inner := range decoded(template, text) {
		all = append(all, encodings(inner)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// encodings returns the text in each form in which a server may send it back.
// None has fewer than minText bytes.
func encodings(text string) []string {
	all := []string{text, hex.EncodeToString([]byte(text)), strings.ToUpper(hex.EncodeToString([]byte(text)))}
	all = append(all, base64Cores(text)...)
	all = append(all, base64Forms(text)...)
	all = append(all, percentForms(text)...)
	all = append(all, jsonForms(text)...)
	slices.Sort(all)
	return slices.Compact(all)
}

// decoded returns what the text is base64 of, where a server may be expected to
// read it and is able to write it: Basic credentials (RFC 7617), their password,
// or anything else that is printable. What is short is left out: it would be
// found by accident.
func decoded(template, text string) (inner []string) {
	whole, ok := decode(text)
	switch scheme, _, _ := strings.Cut(template, slot); {
	case !ok:
		return nil
	case equalFold(strings.TrimSpace(scheme), "Basic"):
		_, password, _ := strings.Cut(whole, ":")
		inner = []string{whole, password}
	case isPrintable(whole):
		inner = []string{whole}
	}
	return slices.DeleteFunc(inner, func(s string) bool { return len(s) < minText })
}

// decode reads base64 in either alphabet, with or without padding.
func decode(text string) (string, bool) {
	std := toStd.Replace(strings.TrimRight(text, "="))
	b, err := base64.RawStdEncoding.DecodeString(std)
	return string(b), err == nil
}

// base64Forms returns a text that is base64 in the other alphabet, and both
// without padding. A mark over that leaves the padding, which tells nothing.
func base64Forms(text string) []string {
	if _, ok := decode(text); !ok {
		return nil
	}
	var forms []string
	for _, form := range []string{text, toURL.Replace(text), toStd.Replace(text)} {
		forms = append(forms, form, strings.TrimRight(form, "="))
	}
	return slices.DeleteFunc(forms, func(s string) bool { return len(s) < minText })
}

// The alphabets of base64 (RFC 4648, sections 4 and 5).
var (
	toURL = strings.NewReplacer("+", "-", "/", "_")
	toStd = strings.NewReplacer("-", "+", "_", "/")
)

// lowered returns the forms in lower case.
func lowered(forms []string) []string {
	all := make([]string, len(forms))
	for i, form := range forms {
		all[i] = lowerText(form)
	}
	return all
}

// base64Cores returns those characters of the base64 of anything that holds the
// text which do not depend on what surrounds it (RFC 4648, sections 4 and 5).
// At either end a character that the text shares with its surroundings is left
// out: four bits of the text's first byte at most, and four of its last.
func base64Cores(text string) []string {
	var cores []string
	for ahead := range 3 { // bytes before the text, modulo 3
		padded := append(make([]byte, ahead, ahead+len(text)), text...)
		first, end := (8*ahead+5)/6, 8*len(padded)/6 // the first and the last whole character
		for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			cores = append(cores, alphabet.EncodeToString(padded)[first:end])
		}
	}
	return cores
}

// percentForms returns the text as the usual encoders write it in URLs and
// forms. They differ in which characters they leave as they are.
func percentForms(text string) []string {
	var forms []string
	for _, left := range []string{
		"",                                    // everything is encoded
		alphanumeric + "-_.~",                 // RFC 3986's unreserved characters
		alphanumeric + "-_.~/",                // Python's quote
		alphanumeric + "-_.*",                 // HTML forms
		alphanumeric + "-_.!~*'()",            // JavaScript's encodeURIComponent
		alphanumeric + "-_.!~*'();/?:@&=+$,#", // and encodeURI
		alphanumeric + "-_.~$&+=:@",           // Go's PathEscape
		alphanumeric + "@*_+-./",              // JavaScript's escape
	} {
		for _, digits := range []string{upperHex, lowerHex} {
			form := percent(text, left, digits)
			forms = append(forms, form, strings.ReplaceAll(form, "%20", "+"))
		}
	}
	return forms
}

const (
	upperHex = "0123456789ABCDEF"
	lowerHex = "0123456789abcdef"
)

func percent(text, left, digits string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if strings.IndexByte(left, c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.Write([]byte{'%', digits[c>>4], digits[c&15]})
	}
	return b.String()
}

// jsonForms returns the text as the usual encoders write it in a JSON string
// (RFC 8259, section 7). Which characters they write as \u00XX differs, and
// whether they escape a slash.
func jsonForms(text string) []string {
	var forms []string
	for _, coded := range []string{
		"",         // only quote and backslash are escaped
		"<>&",      // what would matter to HTML
		`<>&"'`,    // and its attributes
		`<>&"'\`,   // and the backslash
		"<>&\"'+`", // .NET
		"<>&='",    // Gson
		"=",        // what base64 has
		"/",
		"=/",
		"+/=",
		"<>&\"'+`=/", // all of them
	} {
		for _, digits := range []string{upperHex, lowerHex} {
			forms = append(forms, jsonForm(text, coded, `"\`, digits), jsonForm(text, coded, `"\/`, digits))
		}
	}
	return forms
}

func jsonForm(text, coded, escaped, digits string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		switch {
		case strings.IndexByte(coded, c) >= 0:
			b.Write([]byte{'\\', 'u', '0', '0', digits[c>>4], digits[c&15]})
		case strings.IndexByte(escaped, c) >= 0:
			b.Write([]byte{'\\', c})
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
