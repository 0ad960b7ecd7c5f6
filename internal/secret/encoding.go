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

// encodings returns the text in each form in which a server may send it back, without
// the escapes that an [escapedReading] reads. None has fewer than minText bytes.
func encodings(text string) []string {
	all := []string{text, hex.EncodeToString([]byte(text)), strings.ToUpper(hex.EncodeToString([]byte(text)))}
	all = append(all, base64Cores(text)...)
	all = append(all, base64Forms(text)...)
	all = append(all, strings.ReplaceAll(text, " ", "+"))    // in a query
	for _, zeros := range []string{"\x00", "\x00\x00\x00"} { // UTF-16 and UTF-32, in either order of bytes
		all = append(all, strings.Join(strings.Split(text, ""), zeros))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// decoded returns the decoded text if the secret is base64 and a server is likely to decode and repeat it:
// Basic credentials (RFC 7617), their password, or other printable text. Short text is left out, because it
// would match by accident.
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

// unpercented returns a text with its percent-encoded bytes as they are.
func unpercented(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			if value, state := digits([]byte(text[i+1:i+3]), 2, 16); state == escapeDone {
				b.WriteByte(byte(value))
				i += 2
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}
