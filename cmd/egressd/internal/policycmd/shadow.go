package policycmd

import (
	"context"

	"github.com/egressd/egressd/cmd/egressd/internal/logsource"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

// A shadowView is what the policy in shadow would say, where that differs.
type shadowView struct {
	Verdict   string       `json:"verdict"`
	Class     policy.Class `json:"class,omitempty"`
	Rule      string       `json:"rule,omitempty"`
	Layer     policy.Layer `json:"layer,omitempty"`
	Reason    string       `json:"reason,omitempty"`
	AllowedIf []string     `json:"allowed_if,omitempty"`
	Inspected bool         `json:"inspected,omitempty"`
	Policy    string       `json:"policy"`
}

// shadowOf asks the shadow of p about a request, and returns nil where there is none
// or it agrees with d, by which the tunnel of the request is looked into or not.
func shadowOf(p *policy.Policy, asked policy.Request, d policy.Decision, inspected bool) *shadowView {
	shadow := p.Shadow()
	if shadow == nil {
		return nil
	}
	s, judged := shadow.Judge(context.Background(), asked)
	looks := s.Verdict == policy.Inspect || judged.TLS != nil
	if !d.Differs(&s) && (inspected || !looks) {
		return nil
	}
	return &shadowView{
		Verdict: s.Verdict.Action(), Class: s.Class, Rule: s.Rule, Layer: s.Layer, Reason: s.Reason,
		AllowedIf: s.AllowedIf, Inspected: looks, Policy: s.Policy,
	}
}

func (v *shadowView) text() string {
	if v == nil {
		return ""
	}
	return logsource.ShadowText(&egress.RecordShadow{
		Action: v.Verdict, Class: string(v.Class), Rule: v.Rule, Layer: string(v.Layer), Reason: v.Reason, Inspect: v.Inspected,
	})
}
