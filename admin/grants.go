package admin

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
)

// A GrantRequest asks to allow or deny destinations for a while.
type GrantRequest struct {
	Verdict  string   `json:"verdict"`          // "allow" or "deny"
	Patterns []string `json:"patterns"`         // patterns of the policy file
	Method   string   `json:"method,omitempty"` // of an allow: only requests of this method
	Path     string   `json:"path,omitempty"`   // of an allow: only requests below this path of the policy file
	Seconds  int64    `json:"seconds"`
	Sandbox  string   `json:"sandbox,omitempty"`   // limits the grant to one sandbox
	From     string   `json:"from,omitempty"`      // id of the denied flow that caused the request
	OverDeny bool     `json:"over_deny,omitempty"` // of an allow: also over lines that deny or ask, unless they name the host more closely
	DryRun   bool     `json:"dry_run,omitempty"`   // judge it and say what it opens, and grant nothing
	ThisRun  bool     `json:"-"`                   // it ends with the answer to the question From, at the latest
}

// A Grant is a temporary rule beside those of the policy file, as operators see it. The daemon makes it together with the
// [policy.Grant] that decides.
type Grant struct {
	ID       string    `json:"id"`
	Verdict  string    `json:"verdict"`
	Pattern  string    `json:"pattern"`
	Method   string    `json:"method,omitempty"`
	Path     string    `json:"path,omitempty"`
	Sandbox  string    `json:"sandbox,omitempty"` // empty for all sandboxes
	From     string    `json:"from,omitempty"`
	OverDeny bool      `json:"over_deny,omitempty"`
	ThisRun  bool      `json:"this_run,omitempty"` // it ends with the run that asked, at Until at the latest
	By       string    `json:"by"`                 // the operator who asked for it
	UID      *uint32   `json:"uid,omitempty"`      // the operator's uid if known
	Since    time.Time `json:"since"`
	Until    time.Time `json:"until"`   // computed from the current clock
	Seconds  float64   `json:"seconds"` // time left
}

// Text returns what the grant is about: "example.com", or "GET /a of example.com:80".
func (g *Grant) Text() string {
	if g.Method == "" && g.Path == "" {
		return g.Pattern
	}
	return strings.TrimSpace(cmp.Or(g.Method, "any method")+" "+g.Path) + " of " + g.Pattern
}

// Does returns the verdict in words: "allow", "allow over deny" or "deny".
func (g *Grant) Does() string {
	if g.OverDeny {
		return g.Verdict + " over deny"
	}
	return g.Verdict
}

// Granted is the result of a [GrantRequest]. Its policy is in force. A dry run returns the grants that it would make.
type Granted struct {
	Grants   []Grant  `json:"grants"`
	Already  []string `json:"already_allowed"`
	Warnings []string `json:"warnings,omitempty"`
	Opens    string   `json:"opens,omitempty"` // what the grants open and close, in words
	Policy   string   `json:"policy"`          // digest
}

// Revoked is a revoked grant and the digest of the policy without it.
type Revoked struct {
	Revoked Grant  `json:"revoked"`
	Policy  string `json:"policy"`
}

// A GrantList lists all grants, oldest first.
type GrantList struct {
	Grants []Grant `json:"grants"`
	Policy string  `json:"policy"`
}

// Granting changes grants. Its methods return after the change is recorded and in force. An [Unavailable]
// has its own HTTP status; other errors concern the request.
type Granting interface {
	Grant(context.Context, Operator, GrantRequest) (Granted, error)
	Revoke(ctx context.Context, who Operator, id string) (Revoked, error)
	List() GrantList
}

func (s *Server) grants(w http.ResponseWriter, _ *http.Request) {
	if s.Grants == nil {
		noGrants(w)
		return
	}
	write(w, http.StatusOK, s.Grants.List())
}

func (s *Server) grant(w http.ResponseWriter, r *http.Request) {
	var q GrantRequest
	if !decode(w, r, &q, "request", `curl -H 'Content-Type: application/json' -d '{"verdict":"allow","patterns":["example.com"],"seconds":3600}'`) {
		return
	}
	if s.Grants == nil {
		noGrants(w)
		return
	}
	ctx, cancel := changeContext(w, r)
	defer cancel()
	granted, err := s.Grants.Grant(ctx, operatorOf(r), q)
	answer(w, granted, err)
}

func (s *Server) revoke(w http.ResponseWriter, r *http.Request) {
	if s.Grants == nil {
		noGrants(w)
		return
	}
	ctx, cancel := changeContext(w, r)
	defer cancel()
	revoked, err := s.Grants.Revoke(ctx, operatorOf(r), r.PathValue("id"))
	answer(w, revoked, err)
}

func noGrants(w http.ResponseWriter) {
	fail(w, http.StatusNotFound, "nothing is granted here for a while", "egressd allow HOST --save")
}

// changeContext allows a change the time of a reload, which it may have to wait for.
func changeContext(w http.ResponseWriter, r *http.Request) (context.Context, context.CancelFunc) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(reloadTimeout + writeTimeout))
	return context.WithTimeout(r.Context(), reloadTimeout)
}

// answer writes the result of a change.
func answer(w http.ResponseWriter, v any, err error) {
	if other := (*Unavailable)(nil); errors.As(err, &other) {
		fail(w, other.Status, other.Why, other.Hint)
		return
	}
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error(), "egressd status")
		return
	}
	write(w, http.StatusOK, v)
}
