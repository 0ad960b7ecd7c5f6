package cli

import "strings"

// ShellQuote makes s one word for a POSIX shell, whatever it holds.
func ShellQuote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// ShellWord quotes s for a shell where it has to be.
func ShellWord(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./") == "" {
		return s
	}
	return ShellQuote(s)
}

// PatternWord quotes the text of a pattern for a shell where it has to be.
func PatternWord(s string) string {
	if strings.ContainsAny(s, "*[") {
		return ShellQuote(s)
	}
	return s
}
