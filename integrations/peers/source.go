package peers

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// settingsIn reads a JSON object, or takes the known settings out of Python: "name = VALUE" or "name: VALUE", where
// VALUE is True, False, or a list of texts. The errors are a computed value, a name that is set twice, and an unknown
// name that looks like a list of destinations.
func settingsIn(text []byte, known schema) (*setting, error) {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return parseJSON(text)
	}
	tokens, err := tokensOf(text)
	if err != nil {
		return nil, err
	}
	found := &setting{kind: isMapping, line: 1, column: 1}
	for i, name := range tokens {
		if name.text {
			continue
		}
		value, sets := valueAfter(tokens[i+1:])
		m := pair{name.value, name.line, name.column, value}
		_, is := known[name.value]
		switch {
		case !sets:
			continue
		case !is && destinations(name.value):
			return nil, m.errorf("%s is no setting that this import knows; take it out of a copy of the file if it is not about destinations", name.value)
		case !is:
			continue
		case value == nil:
			return nil, m.errorf("%s is computed; write its value as true, false, or a list of texts", name.value)
		}
		if err := found.put(m); err != nil {
			return nil, fmt.Errorf("%w; keep the settings of one sandbox", err)
		}
	}
	if len(found.members) == 0 {
		return nil, fmt.Errorf("it sets none of %s", strings.Join(sortedKeys(known), ", "))
	}
	return found, nil
}

// destinations reports whether a name looks like one of a list of destinations. A list of who may come in is none.
func destinations(name string) bool {
	name = strings.ToLower(name)
	return !strings.HasPrefix(name, "inbound_") && (strings.HasSuffix(name, "list") && (strings.Contains(name, "allow") || strings.Contains(name, "deny") || strings.Contains(name, "block")) ||
		strings.HasPrefix(name, "block_") || strings.HasPrefix(name, "outbound_"))
}

// valueAfter reads what a name is set to, if it is: after "=" or ":", or after the "=" behind a type. The
// value is nil if it is computed.
func valueAfter(tokens []token) (value *setting, sets bool) {
	if len(tokens) == 0 || !tokens[0].is("=") && !tokens[0].is(":") {
		return nil, false
	}
	if value, ok := literal(tokens[1:]); ok {
		return value, true
	}
	for i := 1; tokens[0].is(":") && i < len(tokens) && !tokens[i].text && (letter(tokens[i].value[0]) || strings.Contains("[]<>|=", tokens[i].value)); i++ {
		if tokens[i].is("=") {
			value, _ = literal(tokens[i+1:])
			break
		}
	}
	return value, true
}

// A token is a word, a text in quotes, or one character of a program.
type token struct {
	value        string
	text         bool
	line, column int
}

func (t token) is(value string) bool { return !t.text && t.value == value }

func letter(c byte) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// tokensOf leaves comments out.
func tokensOf(text []byte) (all []token, err error) {
	s := string(text)
	seen, line, start := 0, 1, 0
	add := func(value string, isText bool, at int) {
		for ; seen < at; seen++ {
			if s[seen] == '\n' {
				line, start = line+1, seen+1
			}
		}
		all = append(all, token{value, isText, line, at - start + 1})
	}
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
			add(rest[1:1+n], true, i)
			i += n + 2
		case letter(c):
			n := 1
			for n < len(rest) && letter(rest[n]) {
				n++
			}
			add(rest[:n], false, i)
			i += n
		default:
			add(rest[:1], false, i)
			i++
		}
	}
	return all, nil
}

// literal reads a value that nothing computes.
func literal(tokens []token) (*setting, bool) {
	if len(tokens) == 0 {
		return nil, false
	}
	n := &setting{line: tokens[0].line, column: tokens[0].column}
	if !tokens[0].text {
		switch text := strings.ToLower(tokens[0].value); text {
		case "true", "false":
			n.kind, n.text = isTruth, text
			return n, ended(tokens[1:])
		case "none", "null", "undefined":
			return n, ended(tokens[1:])
		}
	}
	if !tokens[0].is("[") {
		return nil, false
	}
	n.kind = isList
	for i := 1; i < len(tokens); i++ {
		switch t := tokens[i]; {
		case t.text:
			n.list = append(n.list, &setting{kind: isText, text: t.value, line: t.line, column: t.column})
			if i+1 < len(tokens) && !tokens[i+1].is(",") && !tokens[i+1].is("]") {
				return nil, false
			}
		case t.is("]"):
			return n, ended(tokens[i+1:])
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
	return letter(next[0]) && !slices.Contains([]string{"if", "or", "and", "in", "instanceof"}, next) || strings.Contains(",;)}]@", next)
}
