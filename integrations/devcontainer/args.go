package devcontainer

import (
	"strings"
)

// An argument is a flag of docker run with its value. Of a flag without one the value is empty.
type argument struct{ name, value string }

// valued are the flags whose value may be the next word, and which say something of
// boundaries.
var valued = map[string]bool{
	"--network": true, "--net": true, "--pid": true, "--ipc": true, "--uts": true, "--userns": true, "--cgroupns": true,
	"--cap-add": true, "--security-opt": true, "--device": true, "--device-cgroup-rule": true, "--volumes-from": true,
	"--volume": true, "--mount": true,
}

// lettersWithValue are the flags of docker run of one letter that take a value.
const lettersWithValue = "acehlmpuvw"

// readArguments reads words as docker run does. It does not know which unknown flags take a value, so it reads each
// word with a dash as a flag: a value may be refused, but no flag is missed.
func (c *checker) readArguments(words []string) (all []argument, err error) {
	for i := 0; i < len(words); i++ {
		word := words[i]
		next := func() (value string) {
			if i+1 < len(words) {
				i++
				value = words[i]
			}
			return value
		}
		switch {
		case strings.HasPrefix(word, "${"):
			return nil, c.breaks("runArgs", word+" may be any flag", "write the flag that it stands for")
		case strings.HasPrefix(word, "--"):
			name, value, found := strings.Cut(word, "=")
			if !found && valued[name] {
				value = next()
			}
			all = append(all, argument{name, value})
		case strings.HasPrefix(word, "-"):
			all = append(all, letters(word[1:], next)...)
		}
	}
	return all, nil
}

// letters reads flags of one letter that are written together, the last of them with its value.
func letters(word string, next func() string) (all []argument) {
	for i, letter := range word {
		name := "-" + string(letter)
		if !strings.ContainsRune(lettersWithValue, letter) {
			all = append(all, argument{name, ""})
			continue
		}
		value := strings.TrimPrefix(word[i+1:], "=")
		if value == "" {
			value = next()
		}
		return append(all, argument{name, value})
	}
	return all
}
