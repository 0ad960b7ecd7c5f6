package logsource

import (
	"strings"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/logs"
)

// ShadowText says what a shadow would have done, and why.
func ShadowText(s *egress.RecordShadow) string {
	text := "would " + logs.ShadowAction(s)
	if s.Class != "" {
		text += " (" + s.Class + ")"
	}
	text += " by rule " + printable.Rule(s.Rule, s.Layer)
	if s.Reason != "" && !strings.Contains(s.Reason, s.Rule) {
		text += ": " + s.Reason
	}
	return text
}
