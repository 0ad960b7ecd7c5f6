package sandbox

import (
	"bytes"
	"strings"
)

const (
	argumentBytes = 4096 // read of a command
	argumentsMost = 16   // kept of it
)

// left stands for what is left out of an argument.
const left = "..."

// plainArguments splits what /proc says of a command into its arguments, and
// leaves out what looks like a secret, since they are kept in the log: users,
// passwords and queries in URLs, what follows a header, user, token or password
// option, all behind the first word of a longer text. One that looks like nothing
// of that sort attachments.
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

// plainArgument is what is kept of the argument that stands behind another.
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

// secretLetters are options of curl, wget, git and others behind which users,
// passwords, headers, cookies and bodies stand.
const secretLetters = "-u -H -b -d"

// announces reports whether an option says that the argument behind it is not to
// be seen.
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

// looksSecret knows the beginnings of common tokens.
func looksSecret(arg string) bool {
	for _, start := range []string{"sk-", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xox", "AKIA", "ASIA", "eyJ", "npm_", "pypi-"} {
		if strings.HasPrefix(arg, start) {
			return true
		}
	}
	return false
}

// plainURL is a URL without its user, password, query and fragment.
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
