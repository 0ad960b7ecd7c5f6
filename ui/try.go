package ui

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/logs/replay"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
)

// A tryView is one request under an edited policy.
type tryView struct {
	Text   string // of the policy
	Edited bool
	Now    *policy.Decision
	Action string // of Now
	Replay *replayed
	Err    error
}

// try decides the request of a record under the policy that a form has, and nothing without a form. It is nil if the
// page knows no policy.
func (s *Server) try(r *http.Request, was *record.Record) *tryView {
	if !s.options.HasPolicy {
		return nil
	}
	path, err := config.Find(s.options.Config)
	if err != nil {
		return nil
	}
	text, err := config.Read(path)
	if err != nil {
		return nil
	}
	v := &tryView{Text: string(text)}
	if r.Method != http.MethodPost {
		return v
	}
	v.Text, v.Edited = strings.ReplaceAll(r.PostFormValue("policy"), "\r\n", "\n"), true
	cfg, err := config.New(path, []byte(v.Text), config.OrganisationPath)
	if err != nil {
		v.Err = err
		return v
	}
	p, err := cfg.Compile()
	if err != nil {
		v.Err = err
		return v
	}
	again := replay.New(cfg, p)
	if old, err := config.New(path, text, config.OrganisationPath); err == nil {
		if before, err := old.Compile(); err == nil { // else the log is what it is compared with
			again.Beside(old, before)
		}
	}
	d, ok := again.Decide(r.Context(), was)
	if !ok {
		v.Err = errors.New("the record does not hold enough of the request to decide it again")
		return v
	}
	v.Action = replay.ActionOf(d, was)
	v.Now, v.Replay = &d, s.replay(r.Context(), again)
	return v
}

// plainLine matches text that YAML takes for a string without quotes.
var plainLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z]+( [A-Z]+)? [a-z][A-Za-z0-9./:_-]*[A-Za-z0-9/_-]$`)
})

// testsOf writes the decision about a request as a line of the list tests, and as a test in Rego. Both are "" if no
// test can ask for such a request.
func testsOf(r *record.Record) (line, rego string) {
	if r.Decision == nil || r.Dst == nil || r.DNS != nil || r.Dst.Host == "" {
		return "", ""
	}
	subject := net.JoinHostPort(r.Dst.Host, strconv.Itoa(int(r.Dst.Port)))
	input := map[string]any{
		"sandbox": map[string]any{"name": r.Sandbox}, "destination": map[string]any{"host": r.Dst.Host, "port": r.Dst.Port},
	}
	if h := r.HTTP; h != nil && h.Method != "" {
		scheme := "https"
		if r.Via == string(policy.ViaHTTP) {
			scheme = "http"
		}
		subject = h.Method + " " + scheme + "://" + subject + h.Path
		input["http"] = map[string]any{"method": h.Method, "path": h.Path}
	}
	if _, err := file.ParseCheck(subject); err != nil {
		return "", ""
	}
	line = r.Decision.Action + " " + subject
	if !plainLine().MatchString(line) {
		line = quotedJSON(line)
	}
	check := map[string]string{"allow": "count(egress.allow) > 0", "ask": "count(egress.ask) > 0"}[r.Decision.Action]
	if check == "" {
		check = "count(egress.allow) == 0"
	}
	rego = "package egress_test\n\nimport data.egress\n\ntest_" + strings.ToLower(r.Flow) + " if {\n    " + check + " with input as " + quotedJSON(input) + "\n}\n"
	return "- " + line, rego
}

// quotedJSON writes v as JSON in ASCII.
func quotedJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return "" // texts and numbers always have a form
	}
	return string(printable.JSON(text))
}
