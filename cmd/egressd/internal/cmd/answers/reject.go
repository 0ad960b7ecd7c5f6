package answers

import (
	"github.com/egressd/egressd/egress/approvals"
	"github.com/spf13/cobra"
)

func newReject() *cobra.Command {
	o := answerOptions{what: "reject", counts: approvals.RejectedFor}
	cmd := o.command()
	cmd.Use = "reject ID…"
	cmd.Short = "Refuse what a rule asks people about"
	cmd.Long = `Reject answers questions with no, at the listen.admin of egressd serve, and records who
did. What waits is refused, and so is what comes in the next ten minutes, or as
long as --for says, without asking again. What was approved is taken back, and
what is open by it is cut. Nothing is written into the policy.

Exit codes: 0 all are rejected; 1 there was no such question, or nobody answers.`
	cmd.Example = "  egressd questions\n  egressd reject 01KB6ZQ4SZ --for 8h"
	return cmd
}
