package admin

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// A GrantRequest is what an operator wants to have allowed or denied for a while.
type GrantRequest struct {
	Verdict  string   `json:"verdict"`  // allow or deny
	Patterns []string `json:"patterns"` // as in the policy file
	Seconds  int64    `json:"seconds"`
	Sandbox  string   `json:"sandbox,omitempty"` // whom alone it is for
	From     string   `json:"from,omitempty"`    // id of the refusal that it answers
}

// A Grant is a line that counts for a while beside those of the policy file.
type Grant struct {
	ID      string    `json:"id"`
	Verdict string    `json:"verdict"`
	Pattern string    `json:"pattern"`
	Sandbox string    `json:"sandbox,omitempty"` // empty: all
	From    string    `json:"from,omitempty"`
	By      string    `json:"by"`            // who asked for it
	UID     *uint32   `json:"uid,omitempty"` // the same, where the kernel said so
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`   // by the clock as it is now
	Seconds float64   `json:"seconds"` // until then
}

// Granted is what came of a [GrantRequest]. The policy that holds it is in force.
type Granted struct {
	Grants   []Grant  `json:"grants"`
	Already  []string `json:"already_allowed"`
	Warnings []string `json:"warnings,omitempty"`
	Policy   string   `json:"policy"` // its digest
}

// Revoked is a grant that was taken back, and the policy that is in force without it.
type Revoked struct {
	Revoked Grant  `json:"revoked"`
	Policy  string `json:"policy"`
}

// A GrantList is all that counts for a while, oldest first.
type GrantList struct {
	Grants []Grant `json:"grants"`
	Policy string  `json:"policy"`
}

// Granting changes what is in force for a while. Its methods return once the change is in
// force and recorded. An [Unavailable] has its own status; other errors are about what was
// asked for.
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
	ctx, cancel := patience(w, r)
	defer cancel()
	granted, err := s.Grants.Grant(ctx, asking(r), q)
	answer(w, granted, err)
}

func (s *Server) revoke(w http.ResponseWriter, r *http.Request) {
	if s.Grants == nil {
		noGrants(w)
		return
	}
	ctx, cancel := patience(w, r)
	defer cancel()
	revoked, err := s.Grants.Revoke(ctx, asking(r), r.PathValue("id"))
	answer(w, revoked, err)
}

func noGrants(w http.ResponseWriter) {
	fail(w, http.StatusNotFound, "nothing is granted here for a while", "egressd allow HOST --save")
}

// patience is as long as a reload may take, after which a change has its turn.
func patience(w http.ResponseWriter, r *http.Request) (context.Context, context.CancelFunc) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(reloadTimeout + writeTimeout))
	return context.WithTimeout(r.Context(), reloadTimeout)
}

// answer says what came of a change.
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
