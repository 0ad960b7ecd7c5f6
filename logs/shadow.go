package logs

import (
	"cmp"
	"strings"
	"time"

	"github.com/egressd/egressd/record"
)

// shadowGroups counts the decisions that the shadow policy would have made differently. Beyond [MaxGroups]
// lines, the rest is summed under [Beyond].
type shadowGroups map[ShadowKey]*ShadowGroup

// A ShadowKey holds the values that the decisions of one line share.
type ShadowKey struct {
	Destination string `json:"destination"`
	What        string `json:"what"`
	Who         string `json:"who"`
	Now         string `json:"now"`
	Would       string `json:"would"`
	Why         string `json:"why"`
}

// A ShadowGroup is one line about the shadow policy.
type ShadowGroup struct {
	Count int64 `json:"count"`
	ShadowKey
	Last time.Time `json:"last"`
}

func (s *shadowGroups) add(r *record.Record) {
	if r.Shadow == nil || r.Shadow.Action == "" { // the record of a policy load only announces the shadow policy
		return
	}
	key := ShadowKey{Destination(r), What(r), Who(r), r.Decision.Action, ShadowAction(r.Shadow), ShadowWhy(r.Shadow)}
	if *s == nil {
		*s = shadowGroups{}
	}
	if (*s)[key] == nil && len(*s) >= MaxGroups {
		key.Destination, key.What, key.Who = Beyond, Beyond, Beyond
	}
	if (*s)[key] == nil && len(*s) >= 2*MaxGroups { // a foreign log may hold any number of rules
		key.Now, key.Would, key.Why = Beyond, Beyond, Beyond
	}
	if (*s)[key] == nil {
		key.Now, key.Would, key.Why = strings.Clone(key.Now), strings.Clone(key.Would), strings.Clone(key.Why) // the record is borrowed, see [Scan]
		(*s)[key] = &ShadowGroup{ShadowKey: key}
	}
	g := (*s)[key]
	g.Count += r.Times()
	if !r.Time.Before(g.Last) {
		g.Last = r.Time
	}
}

// ShadowWhy returns the class of a denial with its rule, or the rule that would allow.
func ShadowWhy(s *record.Shadow) string {
	switch {
	case s.Class == "":
		return s.Rule
	case s.Layer == "builtin":
		return s.Class
	}
	return s.Class + " (" + s.Rule + ")"
}

// ShadowAction returns the action, or "inspect" for an allowed tunnel that would be inspected.
func ShadowAction(s *record.Shadow) string {
	if s.Action == "allow" && s.Inspect {
		return "inspect"
	}
	return s.Action
}

func compareShadows(a, b *ShadowGroup) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), b.Last.Compare(a.Last), cmp.Compare(a.Destination, b.Destination),
		cmp.Compare(a.What, b.What), cmp.Compare(a.Who, b.Who), cmp.Compare(a.Now, b.Now), cmp.Compare(a.Would, b.Would), cmp.Compare(a.Why, b.Why))
}
