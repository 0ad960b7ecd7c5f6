package secret

import (
	"encoding/base32"
	"encoding/hex"
	"slices"
	"strings"
)

// A canaryForm is a text to look for, and what it is called.
type canaryForm struct{ text, encoding string }

// canaryForms returns how a canary may be written, what is plain first. None has
// fewer bytes than minCanary.
func canaryForms(text string) []canaryForm {
	forms := formsIn(text, "")
	forms = append(forms, formsIn(reversed(text), "reversed ")...)
	return slices.DeleteFunc(forms, func(f canaryForm) bool { return len(f.text) < minCanary })
}

func formsIn(text, how string) (forms []canaryForm) {
	add := func(encoding string, texts ...string) {
		for _, t := range texts {
			forms = append(forms, canaryForm{t, how + encoding})
		}
	}
	coded := hex.EncodeToString([]byte(text))
	add("plain", text)
	add("lower case", strings.ToLower(text))
	add("upper case", strings.ToUpper(text))
	add("hex", coded, strings.ToUpper(coded))
	add("base32", base32Cores(text)...)
	cores := base64Cores(text)
	add("base64", cores...)
	for _, core := range cores {
		add("base64 twice", base64Cores(core)...)
	}
	add("base64 of UTF-16", base64Cores(utf16Of(text, 0))...)
	add("base64 of UTF-16", base64Cores(utf16Of(text, 1))...)
	return forms
}

// base32Cores is what base64Cores is, for base32 in both alphabets and cases (RFC
// 4648, sections 6 and 7).
func base32Cores(text string) (cores []string) {
	for ahead := range 5 {
		padded := append(make([]byte, ahead, ahead+len(text)), text...)
		first, end := (8*ahead+4)/5, 8*len(padded)/5
		for _, alphabet := range []*base32.Encoding{base32.StdEncoding, base32.HexEncoding} {
			core := alphabet.WithPadding(base32.NoPadding).EncodeToString(padded)[first:end]
			cores = append(cores, core, strings.ToLower(core))
		}
	}
	return cores
}

// utf16Of is ASCII as UTF-16, its zeros first or second. The one at the end is left
// out where it would be: what follows the text does not matter.
func utf16Of(text string, zero int) string {
	b := make([]byte, 0, 2*len(text))
	for i := range len(text) {
		if zero == 0 {
			b = append(b, 0, text[i])
		} else {
			b = append(b, text[i], 0)
		}
	}
	return string(b)
}

func reversed(text string) string {
	b := []byte(text)
	slices.Reverse(b)
	return string(b)
}
