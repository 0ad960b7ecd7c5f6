package main

import (
	"strings"
)

// shellQuote makes s one word for a POSIX shell, whatever it holds.
func shellQuote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// shellWord quotes s for a shell where it has to be.
func shellWord(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./") == "" {
		return s
	}
	return shellQuote(s)
}

// patternWord quotes the text of a pattern for a shell where it has to be.
func patternWord(s string) string {
	if strings.ContainsAny(s, "*[") {
		return shellQuote(s)
	}
	return s
}
