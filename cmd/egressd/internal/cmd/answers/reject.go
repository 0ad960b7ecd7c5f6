package answers

import (
	"github.com/egressd/egressd/egress/approvals"
	"github.com/spf13/cobra"
)

func newReject() *cobra.Command {
	o := answerOptions{what: "reject", counts: approvals.RejectedFor}
	cmd := o.command()
	cmd.Use = "reject ID…"
	cmd.Short = "Reject a pending question"
	cmd.Long = `Reject denies the request of a question, and further ones for ten minutes or for as
long as --for says, without asking again. It also takes back an approval and cuts
the connections that only the approval allowed. It is recorded, and changes no file.

Exit codes: 0 all are rejected; 1 there was no such question, or egressd serve
does not answer.`
	cmd.Example = "  egressd questions\n  egressd reject 01KB6ZQ4SZ --for 8h"
	return cmd
}
