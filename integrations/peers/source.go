package peers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// settingsIn reads a JSON object, or takes the known settings out of Python: "name = VALUE" or "name: VALUE", where
// VALUE is True, False, or a list of texts. A value that is computed is an error, and so is a name that is set twice.
func settingsIn(text []byte, known []string) (object, error) {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return parseJSON(text)
	}
	tokens, err := tokensOf(text)
	if err != nil {
		return nil, err
	}
	found := object{}
	for i, name := range tokens {
		if name.text {
			continue
		}
		value, sets := valueAfter(tokens[i+1:])
		if !slices.Contains(known, name.value) || !sets {
			continue
		}
		if value == nil {
			return nil, fmt.Errorf("%s is computed; write its value as true, false, or a list of texts", name.value)
		}
		if _, twice := found[name.value]; twice {
			return nil, fmt.Errorf("%s is set twice; keep the settings of one sandbox", name.value)
		}
		found[name.value] = value
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("it sets none of %s", strings.Join(known, ", "))
	}
	return found, nil
}

// valueAfter reads what a name is set to, if it is: after "=" or ":", or after the "=" behind a type. The
// value is nil if it is computed.
func valueAfter(tokens []token) (value json.RawMessage, sets bool) {
	if len(tokens) == 0 || !tokens[0].is("=") && !tokens[0].is(":") {
		return nil, false
	}
	if value, ok := literal(tokens[1:]); ok {
		return value, true
	}
	for i := 1; tokens[0].is(":") && i < len(tokens) && !tokens[i].text && (word(tokens[i].value[0]) || strings.Contains("[]<>|=", tokens[i].value)); i++ {
		if tokens[i].is("=") {
			value, _ = literal(tokens[i+1:])
			break
		}
	}
	return value, true
}

// A token is a word, a text in quotes, or one character of a program.
type token struct {
	value string
	text  bool
}

func (t token) is(value string) bool { return !t.text && t.value == value }

func word(c byte) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// tokensOf leaves comments out.
func tokensOf(text []byte) (all []token, err error) {
	s := string(text)
	for i := 0; i < len(s); {
		rest := s[i:]
		switch c := s[i]; {
		case strings.IndexByte(" \t\r\n", c) >= 0:
			i++
		case c == '#':
			line, _, _ := strings.Cut(rest, "\n")
			i += len(line)
		case c == '"' || c == '\'':
			n := strings.IndexByte(rest[1:], c)
			if n < 0 || strings.ContainsAny(rest[1:1+n], "\\\n") {
				return nil, fmt.Errorf("a text in it has escapes or several lines: %.40q", rest)
			}
			all = append(all, token{rest[1 : 1+n], true})
			i += n + 2
		case word(c):
			n := 1
			for n < len(rest) && word(rest[n]) {
				n++
			}
			all = append(all, token{value: rest[:n]})
			i += n
		default:
			all = append(all, token{value: rest[:1]})
			i++
		}
	}
	return all, nil
}

// literal reads a value that nothing computes.
func literal(tokens []token) (json.RawMessage, bool) {
	if len(tokens) == 0 {
		return nil, false
	}
	if !tokens[0].text {
		switch strings.ToLower(tokens[0].value) {
		case "true", "false":
			return json.RawMessage(strings.ToLower(tokens[0].value)), ended(tokens[1:])
		case "none", "null", "undefined":
			return json.RawMessage("null"), ended(tokens[1:])
		}
	}
	if !tokens[0].is("[") {
		return nil, false
	}
	list := []string{}
	for i := 1; i < len(tokens); i++ {
		switch t := tokens[i]; {
		case t.text:
			list = append(list, t.value)
			if i+1 < len(tokens) && !tokens[i+1].is(",") && !tokens[i+1].is("]") {
				return nil, false
			}
		case t.is("]"):
			text, err := json.Marshal(list)
			return text, err == nil && ended(tokens[i+1:])
		case !t.is(","):
			return nil, false
		}
	}
	return nil, false
}

// ended reports whether no sign that continues an expression follows a value.
func ended(tokens []token) bool {
	if len(tokens) == 0 || tokens[0].text {
		return true
	}
	next := tokens[0].value
	return word(next[0]) && !slices.Contains([]string{"if", "or", "and", "in", "instanceof"}, next) || strings.Contains(",;)}]@", next)
}
