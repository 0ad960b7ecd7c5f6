// Package explain says what a policy does with a request, and why, without any traffic.
package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
)

// An Answer says what would happen to one request.
type Answer struct {
	Request   string       `json:"request"` // the request as judged: a tunnel that is not inspected hides the path of a URL
	Sandbox   string       `json:"sandbox"`
	Verdict   string       `json:"verdict"`
	Class     policy.Class `json:"class,omitempty"`
	Rule      string       `json:"rule,omitempty"`
	Layer     policy.Layer `json:"layer,omitempty"`
	Reason    string       `json:"reason,omitempty"`
	AllowedIf []string     `json:"allowed_if,omitempty"`
	Policy    string       `json:"policy"`

	// Inspected is true for an inspected tunnel, and for a request inside one.
	Inspected bool `json:"inspected,omitempty"`

	// Credential is the id of the rule whose credential egressd adds to the request.
	Credential string `json:"credential,omitempty"`

	// Set are the names of header fields that egressd writes into requests to the host.
	Set []string `json:"set,omitempty"`

	// MaxBytesUp bounds the bytes that the client may send in the tunnel, or in the body of the request.
	// 0 means no bound.
	MaxBytesUp int64 `json:"max_bytes_up,omitempty"`

	// AddressesJudged is false for a name, because egressd resolves it only to dial it.
	AddressesJudged bool `json:"addresses_judged"`

	// Shadow is the answer of the shadow policy if it differs, else nil.
	Shadow *Shadow `json:"shadow,omitempty"`

	// Presets are those that would allow the host of a request that no rule allows.
	Presets []string `json:"presets,omitempty"`

	Notes []string `json:"-"` // remarks for a person
}

// Check answers what p does with a request.
func Check(p *policy.Policy, q Question) (*Answer, error) {
	j, err := judge(p, &q)
	if err != nil {
		return nil, err
	}
	return j.answer(p, q.Method != ""), nil
}

// A judgedRequest is a request and the decision about it.
type judgedRequest struct {
	asked, judged policy.Request // judged has only the parts that egressd would see
	decision      policy.Decision
}

// judge decides a request.
func judge(p *policy.Policy, q *Question) (j judgedRequest, err error) {
	method := q.Method
	if method == "" && q.Body != nil {
		method = "POST"
	}
	if j.asked, err = Parse(q.Request, method); err != nil {
		return j, err
	}
	j.asked.Sandbox, j.asked.Usage, j.asked.Time, j.asked.Destination.Addrs = q.Sandbox, new(policy.Usage), time.Now(), q.Addresses
	switch h := j.asked.HTTP; {
	case h == nil && (q.Body != nil || q.Header != nil):
		return j, errors.New("header fields and a body belong to a URL; write https:// in front of the host")
	case h != nil:
		h.Header = q.Header
		if q.Body != nil {
			h.Body, h.BodySize = &policy.Body{Bytes: q.Body, Content: q.Body, Ended: true}, int64(len(q.Body))
		}
		if q.Body != nil && len(q.Header["content-encoding"]) > 0 {
			h.Body.Content, h.Body.Problem = nil, "a body is given here as it is before it is compressed"
		}
	}
	j.decision, j.judged = p.Judge(context.Background(), j.asked)
	if h := j.judged.HTTP; h != nil && len(h.UnknownNodes()) > 0 {
		return j, fmt.Errorf("the server decides it: egressd would ask to which repositories the ids %s belong", strings.Join(h.UnknownNodes(), ", "))
	}
	return j, nil
}

func (j *judgedRequest) answer(p *policy.Policy, saidMore bool) *Answer {
	d, dst := j.decision, &j.judged.Destination
	a := &Answer{
		Request: requestText(&j.judged), Sandbox: j.asked.Sandbox.Name, Verdict: d.Verdict.Action(),
		Class: d.Class, Rule: d.Rule, Layer: d.Layer, Reason: d.ReasonAndCause(), AllowedIf: d.AllowedIf, Policy: d.Policy,
		Inspected:       d.Verdict == policy.Inspect || j.judged.TLS != nil,
		Credential:      d.Inject,
		Set:             setNames(d.Set),
		MaxBytesUp:      d.MaxBytesUp,
		AddressesJudged: dst.Addr.IsValid() || len(dst.Addrs) > 0,
	}
	a.Shadow = shadowOf(p, j.asked, d, a.Inspected)
	a.Notes = notesOn(d, &j.judged, j.asked.HTTP != nil || saidMore)
	if a.Verdict == "allow" && !a.AddressesJudged {
		a.Notes = append(a.Notes, "the addresses that the name resolves to are judged when it is dialled")
	}
	if presets := file.PresetsWith(dst.Host, dst.Port); d.Class == policy.DefaultDeny && len(presets) > 0 {
		a.Presets = presets
	}
	return a
}

// setNames are the names in [policy.Decision].Set.
func setNames(set string) (names []string) {
	for line := range strings.Lines(set) {
		name, _, _ := strings.Cut(line, ":")
		names = append(names, name)
	}
	return names
}

// Parse reads a URL or HOST[:PORT]. method counts for a URL.
func Parse(arg, method string) (policy.Request, error) {
	if method != "" && strings.Contains(arg, "://") {
		arg = method + " " + arg
	}
	return file.ParseCheck(arg)
}

// notesOn says how the judged request differs from the asked one. saidMore is true if the caller named a
// method or a path.
func notesOn(d policy.Decision, judged *policy.Request, saidMore bool) []string {
	switch {
	case d.Verdict == policy.Inspect && saidMore:
		return []string{"this HTTPS connection is decrypted and each request in it decided; check a URL to include its method and path"}
	case d.Verdict == policy.Inspect:
		return []string{"this HTTPS connection is decrypted and each request in it decided"}
	case judged.HTTP != nil && judged.TLS != nil:
		return []string{"this HTTPS connection is decrypted; the request inside it was checked"}
	case judged.HTTP == nil && saidMore:
		return []string{"this HTTPS connection is not decrypted, so rules on method or path do not apply"}
	}
	return nil
}

func requestText(r *policy.Request) string {
	switch {
	case r.HTTP == nil:
		return "CONNECT " + r.Destination.String()
	case r.TLS != nil:
		return r.HTTP.Method + " https://" + r.Destination.String() + r.HTTP.Path
	}
	return r.HTTP.Method + " http://" + r.Destination.String() + r.HTTP.Path
}

// A Shadow is the answer of the shadow policy.
type Shadow struct {
	Verdict   string       `json:"verdict"`
	Class     policy.Class `json:"class,omitempty"`
	Rule      string       `json:"rule,omitempty"`
	Layer     policy.Layer `json:"layer,omitempty"`
	Reason    string       `json:"reason,omitempty"`
	AllowedIf []string     `json:"allowed_if,omitempty"`
	Inspected bool         `json:"inspected,omitempty"`
	Policy    string       `json:"policy"`
}

// shadowOf asks the shadow policy of p about a request. It returns nil if there is no shadow policy, or if
// it agrees with d and with whether the tunnel is inspected.
func shadowOf(p *policy.Policy, asked policy.Request, d policy.Decision, inspected bool) *Shadow {
	shadow := p.Shadow()
	if shadow == nil {
		return nil
	}
	s, judged := shadow.Judge(context.Background(), asked)
	looks := s.Verdict == policy.Inspect || judged.TLS != nil
	if !d.Differs(&s) && (inspected || !looks) {
		return nil
	}
	return &Shadow{
		Verdict: s.Verdict.Action(), Class: s.Class, Rule: s.Rule, Layer: s.Layer, Reason: s.ReasonAndCause(),
		AllowedIf: s.AllowedIf, Inspected: looks, Policy: s.Policy,
	}
}
