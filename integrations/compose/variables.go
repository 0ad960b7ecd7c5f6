package compose

import (
	"strings"
)

// expanded puts in what variables stand for, as Compose does: first the environment of the user, then the lines of .env that
// Compose gets. known reports whether that is certain. A variable that nothing sets is not, nor is a value of .env that readers
// of such files may read in different ways.
func (j *composeJudge) expanded(text string) (result string, known bool) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String(), true
		}
		inside := ""
		if braced, ok := strings.CutPrefix(rest, "{"); ok {
			end := closing(braced)
			if end < 0 {
				return text, false
			}
			inside, text = braced[:end], braced[end+1:]
		} else {
			end := 0
			for end < len(rest) && isWord(rest[end]) {
				end++
			}
			inside, text = rest[:end], rest[end:]
		}
		value, ok := j.variable(inside)
		if !ok {
			return "$" + inside, false
		}
		b.WriteString(value)
	}
}

// closing is where the brace closes that is open before text, or -1.
func closing(text string) int {
	for i, open := 0, 1; i < len(text); i++ {
		switch text[i] {
		case '{':
			open++
		case '}':
			if open--; open == 0 {
				return i
			}
		}
	}
	return -1
}

// variable is what NAME, NAME:-DEFAULT or NAME-DEFAULT stands for.
func (j *composeJudge) variable(inside string) (value string, known bool) {
	end := 0
	for end < len(inside) && isWord(inside[end]) {
		end++
	}
	name, rest := inside[:end], inside[end:]
	value, is, known := j.value(name)
	switch {
	case name == "" || !known:
		return "", false
	case rest == "":
		return value, is
	case is && value != "" && (strings.HasPrefix(rest, ":-") || strings.HasPrefix(rest, ":?")), is && (rest[0] == '-' || rest[0] == '?'):
		return value, true
	case strings.HasPrefix(rest, ":-"):
		return j.expanded(rest[2:])
	case !is && rest[0] == '-':
		return j.expanded(rest[1:])
	}
	return "", false
}

// value is the value of a variable. is reports whether anything sets it.
func (j *composeJudge) value(name string) (value string, is, known bool) {
	if value, is := j.environ(name); is {
		return value, true, !strings.Contains(value, "$")
	}
	value, is = j.env.passed(name)
	return value, is, !strings.ContainsAny(value, "\\\"'`$#")
}
