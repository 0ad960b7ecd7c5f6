package ui

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
)

// A query is what the URL of a view asks for: the filter of egressd log, and options of the view.
type query struct {
	View    string
	Text    string // the filter as typed
	words   []string
	filter  *logs.Filter
	Problem string // why the filter is not understood; filter then matches nothing
	Try     string
	Sorted  string     // why the table is not sorted as the address says
	options url.Values // of the view, without the filter
}

// longestFilter bounds the work for one filter.
const longestFilter = 2000

var errLongFilter = errors.New("the filter is longer than 2000 bytes")

func (s *Server) readQuery(r *http.Request, view string) *query {
	q := &query{View: view, options: r.URL.Query()}
	q.Text = strings.TrimSpace(q.options.Get("q"))
	q.options.Del("q")
	filter, err := s.parseFilter(q.Text)
	if err != nil {
		q.filter = logs.Nothing()
		if len(q.Text) <= longestFilter {
			q.words = logs.SplitFilter(q.Text) // other views do not drop it, either
		}
		q.Problem = err.Error()
		if wrong, ok := errors.AsType[*logs.FilterError](err); ok {
			q.Try = wrong.Try
			if wrong.Say != "" {
				q.Problem += "; " + wrong.Say
			}
		}
		return q
	}
	q.filter, q.words = filter, logs.SplitFilter(filter.String())
	return q
}

func (s *Server) parseFilter(text string) (*logs.Filter, error) {
	if len(text) > longestFilter {
		return nil, errLongFilter
	}
	f, err := logs.ParseFilter(logs.SplitFilter(text), time.Now())
	if err != nil {
		return nil, err
	}
	if err := s.takeRun(f); err != nil {
		return nil, err
	}
	if !f.NamesNumbers() {
		return f, nil
	}
	if s.options.Runs != nil && f.Run == "" {
		return nil, &logs.FilterError{Err: errors.New("seq: names a record of one log, and the page shows several"), Try: "run:last " + text}
	}
	dir, err := s.logOf(f.Run)
	if err == nil {
		err = source.Resolve(f, dir)
	}
	return f, err
}

// takeRun replaces the run that a filter names by its ID.
func (s *Server) takeRun(f *logs.Filter) error {
	if f.Run == "" {
		return nil
	}
	if s.options.Runs == nil {
		return &logs.FilterError{Err: errors.New("the page shows one log"), Say: "egressd ui --run " + f.Run}
	}
	run, err := s.run(f.Run)
	if err != nil {
		return &logs.FilterError{Err: err, Try: "run:last"}
	}
	f.Run = run.ID
	return nil
}

// Show returns the URL of the list with one request beside it.
func (q *query) Show(flow string) string { return q.option("show", flow) }

// Exports reports whether the view shows decisions, which can be exported.
func (q *query) Exports() bool { return q.Problem == "" && q.View != "/runs" && q.View != "/attempts" }

// Export returns the URL of what the filter takes, in a format.
func (q *query) Export(format string) string {
	return address(exportPath, q.words, url.Values{"format": {format}})
}

// Rest returns the filter without the span of time.
func (q *query) Rest() string { return strings.Join(without(without(q.words, "since"), "until"), " ") }

// term returns one word of a filter.
func term(key, value string) string {
	if value == "" || strings.ContainsAny(value, " \t\r\n\"\\") {
		value = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
	}
	return key + ":" + value
}

// with returns the URL of a view with further terms. Earlier terms with the same key make way.
func (q *query) with(view string, terms ...string) string {
	var words []string
	for _, word := range q.words {
		key, _, _ := strings.Cut(word, ":")
		same := func(t string) bool { k, _, _ := strings.Cut(t, ":"); return k == key }
		if !slices.ContainsFunc(terms, same) {
			words = append(words, word)
		}
	}
	return address(view, append(words, terms...), nil)
}

// without returns the URL of this view without the terms of some keys.
func (q *query) without(keys ...string) string {
	var words []string
	for _, word := range q.words {
		if key, _, _ := strings.Cut(word, ":"); !slices.Contains(keys, key) {
			words = append(words, word)
		}
	}
	return address(q.View, words, q.options)
}

// option returns the URL of this view with an option set, or removed if value is "".
func (q *query) option(name, value string) string {
	options := url.Values{}
	for k, v := range q.options {
		options[k] = v
	}
	options.Set(name, value)
	if value == "" {
		options.Del(name)
	}
	return address(q.View, q.words, options)
}

func address(view string, words []string, options url.Values) string {
	v := url.Values{}
	for k, all := range options {
		v[k] = all
	}
	if len(words) > 0 {
		v.Set("q", strings.Join(words, " "))
	}
	if len(v) == 0 {
		return view
	}
	return view + "?" + v.Encode()
}

func between(from, to time.Time) []string {
	return []string{term("since", from.UTC().Format(time.RFC3339)), term("until", to.UTC().Format(time.RFC3339))}
}
