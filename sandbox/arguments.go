package sandbox

import (
	"bytes"
	"strings"
)

const (
	argumentBytes = 4096 // read of a command
	argumentsMost = 16   // kept of it
)

// left replaces a removed part of an argument.
const left = "..."

// plainArguments splits a command line of /proc into arguments, and removes text that looks like a secret,
// because arguments are kept in the log: users, passwords and queries of URLs; the value of a header, user,
// token or password option; everything behind the first word of a longer text. A secret that looks like
// ordinary text stays.
func plainArguments(text []byte) (argv []string) {
	before := ""
	for arg := range bytes.SplitSeq(bytes.TrimRight(text, "\x00"), []byte{0}) {
		if len(argv) == argumentsMost {
			break
		}
		argv = append(argv, plainArgument(before, string(arg)))
		before = string(arg)
	}
	return argv
}

// plainArgument returns arg without secrets. before is the argument in front of arg.
func plainArgument(before, arg string) string {
	if announces(before, arg) || looksSecret(arg) {
		return left
	}
	if i := strings.IndexAny(arg, " \t\r\n"); i >= 0 {
		return strings.TrimSuffix(plainArgument("", arg[:i]), left) + left
	}
	name, rest, found := strings.Cut(arg, "=")
	switch {
	case found && secretName(name):
		return name + "=" + left
	case len(arg) > 2 && strings.Contains(secretLetters, arg[:2]) && strings.ContainsAny(arg, ":="):
		return arg[:2] + left
	case found && strings.Contains(rest, "://"):
		return name + "=" + plainURL(rest)
	case strings.Contains(arg, "://"):
		return plainURL(arg)
	}
	if name, _, found := strings.Cut(arg, ":"); found && secretName(name) {
		return name + ":" + left
	}
	return arg
}

// secretLetters are options of curl, wget, git and others whose values are users, passwords, headers, cookies
// or bodies.
const secretLetters = "-u -H -b -d"

// announces reports whether an option's value may be a secret.
func announces(option, arg string) bool {
	switch {
	case !strings.HasPrefix(option, "-") || strings.Contains(option, "="):
		return false
	case len(option) == 2:
		return strings.Contains(secretLetters, option) && strings.ContainsAny(arg, ":=")
	}
	return secretName(option)
}

func secretName(name string) bool {
	name = strings.ToLower(name)
	for _, word := range []string{"pass", "pwd", "secret", "token", "auth", "cookie", "header", "credential", "key", "user", "data"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// looksSecret reports whether arg begins like a common token.
func looksSecret(arg string) bool {
	for _, start := range []string{"sk-", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xox", "AKIA", "ASIA", "eyJ", "npm_", "pypi-"} {
		if strings.HasPrefix(arg, start) {
			return true
		}
	}
	return false
}

// plainURL returns a URL without user, password, query and fragment.
func plainURL(text string) string {
	scheme, rest, _ := strings.Cut(text, "://")
	if i := strings.IndexAny(rest, "?#"); i >= 0 {
		rest = rest[:i+1] + left
	}
	authority, path, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		rest = authority[i+1:]
		if len(path) > 0 {
			rest += "/" + path
		}
	}
	return scheme + "://" + rest
}
