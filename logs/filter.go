package logs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/record"
)

// A condition tests a joined record: a close record completed by its open record.
type condition func(*record.Record) bool

// A clause holds if any of its conditions holds. A negated clause holds if none does.
type clause struct {
	key string
	not bool
	own bool // reads only ownKeys
	any []condition

	literals []string // one is in a line of each flow for which the clause holds; nil: that is not known
}

// ownKeys are the keys that read what each flow has for itself: its id, its number, its time, and its end.
var ownKeys = map[string]bool{"flow": true, "id": true, "seq": true, "since": true, "until": true, "up": true, "down": true, "query": true, "took": true}

// verbatim are the keys whose values stand in a line, or a part of them. The others are computed, as an outcome of "open" is.
var verbatim = map[string]bool{
	"host": true, "domain": true, "sandbox": true, "container": true, "via": true, "method": true, "path": true, "sni": true, "proc": true, "kind": true,
	"verdict": true, "class": true, "rule": true, "layer": true, "policy": true, "flow": true,
}

func (c *clause) holds(r *record.Record) bool {
	for _, condition := range c.any {
		if condition(r) {
			return !c.not
		}
	}
	return c.not
}

// A Filter selects records, see [ParseFilter]. The zero value matches every record. A Filter is safe for
// concurrent use.
type Filter struct {
	// Run names the run whose log is read, or is "". No record carries the name of its run.
	Run string

	clauses []clause
	numbers []*numbers // of seq:
	kinds   []string   // kinds that the filter names
	words   []string
}

// Match reports whether the joined record r passes the filter.
func (f *Filter) Match(r *record.Record) bool {
	for i := range f.clauses {
		if !f.clauses[i].holds(r) {
			return false
		}
	}
	return true
}

// During has the filter pass only records of a sandbox from one time until another, which may be nil.
func (f *Filter) During(sandbox string, from time.Time, until *time.Time) {
	f.clauses = append(f.clauses, clause{literals: []string{sandbox}, any: []condition{func(r *record.Record) bool {
		return r.Sandbox == sandbox && !r.Time.Before(from) && (until == nil || !r.Time.After(*until))
	}}})
}

// String returns the filter in the form that [SplitFilter] reads.
func (f *Filter) String() string { return strings.Join(f.words, " ") }

// NamesKind reports whether the filter names a kind of record.
func (f *Filter) NamesKind() bool { return len(f.kinds) > 0 }

// WantsRecords reports whether the filter names a kind of record that holds no decision. Such records
// cannot be grouped.
func (f *Filter) WantsRecords() bool {
	return slices.ContainsFunc(f.kinds, func(k string) bool {
		return k == "policy" || k == "start" || k == "stop" || k == "recovery" || k == "close" || k == "signal" || k == "admin" || k == "heartbeat"
	})
}

// A FilterError describes a filter that egressd does not understand.
type FilterError struct {
	Err error
	Try string // a corrected filter, or ""
	Say string // advice if Try is ""
}

func (e *FilterError) Error() string { return e.Err.Error() }
func (e *FilterError) Unwrap() error { return e.Err }

const exampleFilter = "host:example.com verdict:deny since:1h"

// A term is one word of a filter.
type term struct {
	not   bool
	key   string
	value string
}

// ParseFilter parses the words of a filter. Times are relative to now. Every error is a [*FilterError].
//
//	filter = { term }                         all terms must hold
//	term   = [ "-" | "!" ] ( KEY ":" value | value )
//	value  = TEXT | '"' TEXT '"'              in quotes, \" and \\ stand for " and \
//
// A time may stand as it is printed, with a space and without quotes.
//
// A term without a key matches part of the host, or the address if the value is an address. Among positive
// terms with the same key, one match is enough. Comparisons such as up:>10k and times must all hold.
func ParseFilter(words []string, now time.Time) (*Filter, error) {
	f := &Filter{}
	for _, word := range joinTimes(words) {
		t, err := parseTerm(word)
		if err != nil {
			return nil, err
		}
		if err := f.add(t, now); err != nil {
			return nil, err
		}
		f.words = append(f.words, t.String())
	}
	return f, nil
}

// joinTimes puts a time together that white space has split, such as since:2026-11-20 09:30:00. Times are printed like that.
func joinTimes(words []string) (joined []string) {
	for _, word := range words {
		last := len(joined) - 1
		if last >= 0 {
			key, begun, _ := strings.Cut(strings.TrimLeft(joined[last], "-!"), ":")
			begun = strings.Trim(begun, `"`)
			if (key == "since" || key == "until") && continuesTime(begun, word) {
				before, _, _ := strings.Cut(joined[last], ":")
				joined[last] = before + `:"` + begun + " " + word + `"`
				continue
			}
		}
		joined = append(joined, word)
	}
	return joined
}

// continuesTime reports whether word is the time of a day, or the zone of a time.
func continuesTime(begun, word string) bool {
	if word == "UTC" {
		_, err := parseClock(begun[strings.LastIndexByte(begun, ' ')+1:])
		return err == nil
	}
	if _, err := time.Parse(time.DateOnly, begun); err != nil {
		return false
	}
	_, err := parseClock(strings.TrimSuffix(word, "Z"))
	return err == nil
}

func parseTerm(word string) (t term, err error) {
	rest, not := strings.CutPrefix(word, "-")
	if !not {
		rest, not = strings.CutPrefix(word, "!")
	}
	t.not = not
	var found bool
	if isAddress(rest) {
		t.key, t.value = "addr", rest
	} else if t.key, t.value, found = strings.Cut(rest, ":"); !found || rest[0] == '"' {
		t.key, t.value = "", rest
	}
	quoted := strings.HasPrefix(t.value, `"`)
	if quoted {
		if t.value, err = unquote(t.value); err != nil {
			return t, &FilterError{Err: fmt.Errorf("%s: %w", word, err), Try: `path:"/a path"`}
		}
	}
	if t.value == "" && (!quoted || t.key == "") {
		return t, &FilterError{Err: fmt.Errorf("the filter %q has no value", word), Try: exampleFilter}
	}
	if t.key == "" {
		t.key, t.value = "host", "*"+t.value+"*"
	}
	return t, nil
}

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	if err != nil {
		_, err = netip.ParsePrefix(s)
	}
	return err == nil
}

var errQuotes = errors.New(`a value that begins with " ends with another one`)

func unquote(s string) (string, error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '"' && i == len(s)-1:
			return b.String(), nil
		case s[i] == '"':
			return "", errQuotes
		case s[i] == '\\' && i+1 < len(s) && (s[i+1] == '"' || s[i+1] == '\\'):
			i++
		}
		b.WriteByte(s[i])
	}
	return "", errQuotes
}

// String writes the term so that parseTerm reads the same term again.
func (t term) String() string {
	value := t.value
	if value == "" || strings.HasPrefix(value, `"`) || strings.ContainsFunc(value, isSpace) {
		value = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
	}
	return map[bool]string{true: "-"}[t.not] + t.key + ":" + value
}

func isSpace(r rune) bool { return r == ' ' || r == '\t' || r == '\n' || r == '\r' }

// SplitFilter splits a filter into the words that [ParseFilter] takes. White space separates words, except
// inside quotes.
func SplitFilter(text string) []string {
	var words []string
	var word strings.Builder
	quoted, value := false, true // value reports whether a quote here begins a value
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quoted && c == '\\' && i+1 < len(text):
			word.WriteByte(c)
			i++
			c = text[i]
		case c == '"' && (quoted || value):
			quoted = !quoted
		case !quoted && isSpace(rune(c)):
			if word.Len() > 0 {
				words = append(words, word.String())
				word.Reset()
			}
			value = true
			continue
		}
		value = !quoted && (c == ':' || value && word.Len() == 0 && (c == '-' || c == '!'))
		word.WriteByte(c)
	}
	if word.Len() > 0 {
		words = append(words, word.String())
	}
	return words
}

func (f *Filter) add(t term, now time.Time) error {
	if t.key == "run" {
		return f.addRun(t)
	}
	k := filterKeys[t.key]
	if k == nil {
		return unknownKey(t)
	}
	if err := k.known(t); err != nil {
		return err
	}
	c, every, err := k.read(t.value, now)
	if err != nil {
		return &FilterError{Err: fmt.Errorf("%s:%s: %w", t.key, t.value, err), Try: k.example}
	}
	if t.key == "kind" && !t.not {
		f.kinds = append(f.kinds, t.value)
	}
	if t.key == "seq" {
		n := &numbers{}
		n.span, _ = parseSpan(t.value, parseNumber)
		c, f.numbers = n.hold, append(f.numbers, n)
	}
	var literals []string
	if verbatim[t.key] && !t.not {
		literals = []string{literalOf(t.value)}
	}
	if !every && !t.not {
		for i := range f.clauses {
			if earlier := &f.clauses[i]; earlier.key == t.key && !earlier.not {
				earlier.any = append(earlier.any, c)
				earlier.literals = append(earlier.literals, literals...)
				return nil
			}
		}
	}
	name := t.key
	if every {
		name = ""
	}
	f.clauses = append(f.clauses, clause{name, t.not, ownKeys[t.key], []condition{c}, literals})
	return nil
}

// Split returns two filters that together match what f matches. Filter own reads only Flow, Seq, Time, Duration
// and Bytes of a record, and shared reads none of these. An index evaluates shared once for all decisions
// that are alike.
func (f *Filter) Split() (shared, own *Filter) {
	shared, own = &Filter{}, &Filter{}
	for _, c := range f.clauses {
		part := shared
		if c.own {
			part = own
		}
		part.clauses = append(part.clauses, c)
	}
	return shared, own
}

// Nothing returns a filter that matches no record.
func Nothing() *Filter { return &Filter{clauses: []clause{{}}} }

// Empty reports whether f matches every record.
func (f *Filter) Empty() bool { return len(f.clauses) == 0 }

func (f *Filter) addRun(t term) error {
	if t.not || f.Run != "" && f.Run != t.value {
		return &FilterError{Err: errors.New("run: names the one run whose log is read"), Try: "run:last"}
	}
	f.Run = t.value
	return nil
}

func unknownKey(t term) error {
	err := fmt.Errorf("there is no filter %q", t.key)
	if strings.Contains(t.key, ".") {
		return &FilterError{Err: err, Try: fmt.Sprintf("host:%s port:%s", t.key, t.value)}
	}
	if near := spelling.Nearest(t.key, FilterKeys); near != "" {
		return &FilterError{Err: err, Say: "did you mean " + term{t.not, near, t.value}.String() + "?"}
	}
	return &FilterError{Err: err, Say: "the filters are " + strings.Join(FilterKeys, " ")}
}
