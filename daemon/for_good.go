package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy"
)

// forGood writes what questions ask for into the policy file: [admin.Saving].
type forGood struct{ daemon *Daemon }

// File writes what questions ask for into the policy file.
func (d *Daemon) File() admin.Saving { return forGood{d} }

// WouldSave implements [admin.Saving].
func (f forGood) WouldSave(ctx context.Context, q *egress.Question) (*admin.Saved, error) {
	a, err := f.change(q)
	if err != nil {
		return nil, err
	}
	return &admin.Saved{
		Path: a.Path, Sandbox: receiverOf(a), Shared: a.Shared(), Lines: linesOf(a), Diff: a.Diff(), Opens: explain.Told(ctx, a.Sides(), a.Near()...), Warnings: a.Warnings, Digest: digestOf(a, q),
	}, nil
}

// Save implements [admin.Saving]. The goroutine that reloads judges, writes and reloads in one turn, so no other change of the policy comes
// in between.
func (f forGood) Save(ctx context.Context, who admin.Operator, q *egress.Question, digest string) error {
	return f.daemon.grants.inTurn(ctx, func(ctx context.Context) error {
		a, err := f.change(q)
		if err != nil {
			return err
		}
		if digestOf(a, q) != digest {
			return refused("egressd answer "+q.ID+" yes --for good", "the policy file has changed since this was shown, so nothing was written")
		}
		if _, _, err := a.Write(); err != nil {
			return refused("as a user who may write it: "+f.command(a, q), "%v", err)
		}
		if f.daemon.tailor.OneRun {
			return nil
		}
		return f.daemon.reloads.reload(ctx, "question "+q.ID+" is answered for good by "+who.String(), true)
	})
}

// command does the same without the daemon.
func (f forGood) command(a *edit.Addition, q *egress.Question) string {
	o := openingOf(q)
	line := shell.Program() + " allow " + shell.Pattern(o.Pattern.String()) + " --save"
	only := ""
	if a.Config.EntryFor(q.Sandbox) != nil {
		only = q.Sandbox
	}
	for _, flag := range [][2]string{{"method", o.Method}, {"path", o.Path}, {"sandbox", only}} {
		if flag[1] != "" {
			line += " --" + flag[0] + " " + shell.Word(flag[1])
		}
	}
	return line + ConfigFlag(f.daemon.Path)
}

// change judges the lines that allow what a question asks for, to its sandbox alone. It does what egressd allow --from --save does.
func (f forGood) change(q *egress.Question) (*edit.Addition, error) {
	o := openingOf(q)
	if q.Pattern == "" && o.Conditional() && !policy.NamesOne(o.Method, o.Path) {
		return nil, refused("a rule in "+f.daemon.Path+" that you write, with the methods and paths that are meant to pass", "no line can name just %s %q", o.Method, o.Path)
	}
	if err := o.Check(); err != nil {
		return nil, refused("egressd answer "+q.ID+" yes --for 24h", "%v", err)
	}
	a, err := edit.New(f.daemon.Path, "allow")
	if err != nil {
		return nil, notSaved(err)
	}
	a.For(q.Sandbox)
	if err := a.Add([]policy.Opening{o}); err != nil {
		return nil, notSaved(err)
	}
	if !a.Changes() {
		return nil, refused("egressd answer "+q.ID+" yes", "the policy file allows %s already", o)
	}
	return a, nil
}

// openingOf is what a question asks for, as a line of the file.
func openingOf(q *egress.Question) policy.Opening {
	text := q.Pattern
	if text == "" {
		text = net.JoinHostPort(q.Host, strconv.Itoa(int(q.Port)))
	}
	p, _ := policy.ParsePattern(text) // the zero value, which Check refuses
	return policy.Opening{Pattern: p, Method: q.Method, Path: q.Path}
}

// notSaved is why the file does not get a line, with its own hint.
func notSaved(err error) error {
	return &admin.Unavailable{Status: http.StatusUnprocessableEntity, Why: err.Error(), Hint: hint.Next(err)}
}

// receiverOf returns the sandbox or template that gets the lines alone, or "" if the file lists none.
func receiverOf(a *edit.Addition) string {
	if len(a.Config.File.Sandboxes) == 0 {
		return ""
	}
	return a.Only()
}

func linesOf(a *edit.Addition) (lines []string) {
	for _, o := range a.Added {
		lines = append(lines, o.String())
	}
	return lines
}

// digestOf is the digest of a change, and of the question that it answers.
func digestOf(a *edit.Addition, q *egress.Question) string {
	before, after := a.Texts()
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %s%s", q.Terms, a.Path, len(before), before, after))
	return hex.EncodeToString(sum[:])
}
