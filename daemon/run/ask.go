package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/tty"
	"github.com/egressd/egressd/record"
)

const (
	askAgain    = 300 * time.Millisecond // between two looks at questions that nobody waits for
	askQuiet    = 700 * time.Millisecond // without a key, until a key counts as an answer
	withinFirst = time.Second            // a question that approve_within may answer is not asked before
	onceLasts   = 5 * time.Minute        // of an approval for the requests that wait
	wordsShown  = 200                    // bytes of what the program chose
)

// openTerminal has questions of the policy asked on the terminal of this process. Without one, or beside an egressd serve,
// which asks, it does nothing: a run without a terminal denies at once what a rule would ask about.
func (r *runner) openTerminal() {
	if r.beside != nil {
		return
	}
	r.Gate.Approvals.OneRun = true
	r.Gate.Approvals.OpenAccess(r.Config.File.ApproveWithin != "")
	if r.terminal = r.ownTerminal(); r.terminal != nil {
		r.Gate.Approvals.Open(true, r.Config.File.Limits.AskWait)
	}
}

// ownTerminal opens the terminal of this process, if its messages go to one; else it returns nil. It is called before the program
// starts: later, the program could keep others from opening the terminal (TIOCEXCL).
func (r *runner) ownTerminal() *os.File {
	out, ok := r.talk.To.(*os.File)
	if !ok || !tty.Is(out) {
		return nil
	}
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	return f
}

// askAll asks one question after another until ctx is done, or until the person wants no more. Then it denies all that is
// asked.
func (r *runner) askAll(ctx context.Context) {
	defer r.terminal.Close()
	defer r.Gate.Approvals.Open(false, 0)
	signal.Ignore(syscall.SIGTTOU) // which the kernel sends who takes the terminal from the background
	told := ""
	for version := ^uint64(0); ctx.Err() == nil; {
		all := r.Gate.Approvals.Questions(ctx, version)
		q := firstPending(all.Questions)
		later := ""
		switch {
		case q == nil:
			version = all.Version
			continue
		case q.Pattern != "" && r.Config.File.ApproveWithin != "" && time.Since(q.Began) < withinFirst:
			// the boundary may answer
		case q.Waiting == 0 && q.Pattern == "" && r.Gate.Approvals.Wait() > 0, !r.hasTerminal():
			later = "it is asked when this run has the terminal (fg)"
		default:
			asked, more := r.askOne(ctx, q)
			if asked && !more {
				return
			}
			if asked {
				continue
			}
			later = "it cannot be asked while the program starts processes faster than egressd can stop them"
		}
		if later != "" && (q.Waiting > 0 || q.Pattern != "") && told != q.ID {
			told = q.ID
			r.talk.Say("egressd: question: " + printable.Text(whatIsAsked(q)) + ": " + later + "\n")
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
		}
	}
}

// firstPending returns the oldest question without an answer for which a request waits, else the oldest that the sandbox asks
// of itself, else the oldest without an answer.
func firstPending(all []egress.Question) (first *egress.Question) {
	for i := range all {
		if all[i].State != string(approvals.Pending) {
			continue
		}
		if all[i].Waiting > 0 {
			return &all[i]
		}
		if first == nil || first.Pattern == "" && all[i].Pattern != "" { // which nobody has to wait at
			first = &all[i]
		}
	}
	return first
}

// hasTerminal reports whether egressd or the program may read from the terminal.
func (r *runner) hasTerminal() bool {
	group := tty.Foreground(r.terminal)
	return group != 0 && (group == syscall.Getpgrp() || r.jail.Holds(group))
}

// askOne asks a question and records the answer. The processes of the jail are stopped meanwhile: they can neither read the
// keys nor change what is shown. If they cannot be stopped, askOne asks nothing. more is false if the person wants no more questions.
func (r *runner) askOne(ctx context.Context, q *egress.Question) (asked, more bool) {
	r.prompt.Lock()
	defer r.prompt.Unlock()
	over := func() bool { return ctx.Err() != nil || r.isOver(q) }
	asked = r.askKey(r.terminal, func() { fmt.Fprint(r.terminal, questionText(q)) }, over, func(key byte) {
		var said string
		if key|0x20 == 'g' {
			said, more = r.takeForGood(q, over), true
		} else {
			said, more = r.take(key, q)
		}
		fmt.Fprintf(r.terminal, "%s\r\n", said)
	})
	return asked, more
}

// takeForGood shows the change of the policy file that allows what is asked, and makes it if the person agrees. It returns what came of
// that in words.
func (r *runner) takeForGood(q *egress.Question, over func() bool) (said string) {
	ctx, cancel := context.WithTimeout(context.Background(), grantPatience)
	defer cancel()
	asked := r.asked()
	saved, err := asked.WouldSave(ctx, q)
	if err != nil {
		return "for good: " + denied(err)
	}
	text := "for good\n" + saved.Diff
	for _, w := range saved.Warnings {
		text += "egressd: warning: " + printable.Text(w) + "\n"
	}
	text += "egressd: for " + printable.Text(saved.To()) + "; that " + printable.Text(saved.Opens) + "\negressd: y: write that, and allow it for this run, any other key: no answer "
	ask := func() { fmt.Fprint(r.terminal, strings.ReplaceAll(text, "\n", "\r\n")) }
	if tty.ReadKey(r.terminal, askQuiet, ask, over)|0x20 != 'y' {
		return "no answer"
	}
	if _, err := asked.Save(ctx, r.person(), q, approvals.Answer{First: true}, saved.Digest); err != nil {
		return denied(err)
	}
	return "for good, and for this run: " + printable.Text(saved.Path) + " has it"
}

// denied is why an answer does not count, and what to type next.
func denied(err error) string {
	text := "denied: " + err.Error()
	var other *admin.Unavailable
	if errors.As(err, &other) && other.Hint != "" {
		text += "; " + other.Hint
	}
	return printable.Text(text)
}

// askKey has settle take the key that is typed after ask, with the processes of the jail stopped. It reports false, and calls
// neither, if they cannot be stopped.
func (r *runner) askKey(terminal *os.File, ask func(), over func() bool, settle func(key byte)) bool {
	r.asking.Store(true)
	resume, all := r.jail.Pause()
	key, before := byte(0), tty.Foreground(terminal)
	if all {
		if before != syscall.Getpgrp() {
			tty.SetForeground(terminal, syscall.Getpgrp())
		}
		key = tty.ReadKey(terminal, askQuiet, ask, over)
		settle(key)
		if before != syscall.Getpgrp() {
			tty.SetForeground(terminal, before)
		}
	}
	resume()
	r.asking.Store(false)
	if key == interrupt {
		_ = syscall.Kill(-before, syscall.SIGINT)
	}
	return all
}

const interrupt = 3 // Ctrl-C

// isOver reports whether an answer to q would come too late.
func (r *runner) isOver(q *egress.Question) bool {
	id, _ := record.ParseID(q.ID)
	now, found := r.Gate.Approvals.Question(id)
	return !found || now.State != string(approvals.Pending) || q.Waiting > 0 && now.Waiting == 0
}

// questionText returns what is shown. The words of the program stand on lines of their own, escaped and quoted.
func questionText(q *egress.Question) string {
	lead := "\r\n"
	if term := os.Getenv("TERM"); term != "" && term != "dumb" {
		lead = "\x1b[m" + lead // whatever colours the program has set
	}
	lines := []string{"egressd: question: " + whatIsAsked(q)}
	if q.Reason != "" {
		lines = append(lines, "egressd:   rule: "+q.Reason)
	}
	if q.Method != "" || q.Path != "" {
		lines = append(lines, "egressd:   the program's request: "+quoted(strings.TrimSpace(cmp.Or(q.Method, "any method")+" "+q.Path)))
	}
	if q.Words != "" {
		lines = append(lines, "egressd:   the program says why: "+quoted(q.Words))
	}
	if p := q.Process; p != nil {
		lines = append(lines, fmt.Sprintf("egressd:   the program, pid %d: %s", p.PID, quoted(strings.Join(append([]string{p.Exe}, p.Argv[min(1, len(p.Argv)):]...), " "))))
	}
	shown := []string{printable.Text(lines[0])}
	for _, line := range lines[1:] {
		shown = append(shown, folded(line)...)
	}
	once := "o: once, only what waits now, "
	if q.Pattern != "" {
		once = ""
	}
	return lead + strings.Join(shown, "\r\n") + "\r\negressd: allow? " + once + "h: for an hour, s: for this run, 24 h at most, g: this sandbox for good, in the policy file, which is shown first, n: no, for ten minutes, q: no, and ask no more "
}

// foldAt is the width, in columns, of lines that hold text of a program.
const foldAt = 72

// folded escapes and folds a line. Where a terminal folds one, the program could have its words begin like a line of egressd. The
// width of the terminal does not help, since the program may set it.
func folded(line string) (all []string) {
	piece, columns := "", 0
	for _, c := range printable.Text(line) {
		wide := 1
		if c >= 0x1100 { // the first characters that may take two
			wide = 2
		}
		if columns+wide > foldAt {
			all = append(all, piece)
			piece, columns = "egressd:   > ", len("egressd:   > ")
		}
		piece, columns = piece+string(c), columns+wide
	}
	return append(all, piece)
}

func quoted(words string) string {
	if len(words) > wordsShown {
		words = words[:wordsShown] + "…"
	}
	return strconv.Quote(words)
}

// whatIsAsked names who asks for what, and the rule, in words of egressd and the policy alone.
func whatIsAsked(q *egress.Question) string {
	what := net.JoinHostPort(q.Host, strconv.Itoa(int(q.Port)))
	switch {
	case q.Pattern != "" && q.Method+q.Path != "":
		what = "some requests to " + what
	case q.Method != "":
		what = "one request to " + what
	}
	return fmt.Sprintf("sandbox %s asks for %s (rule %s)", q.Sandbox, what, q.Rule)
}

// take records and gives the answer that a key stands for, and returns it in words.
func (r *runner) take(key byte, q *egress.Question) (said string, more bool) {
	lasts := map[byte]time.Duration{'o': onceLasts, 'h': approvals.ApprovedFor, 's': approvals.MaxAnswer}
	switch key |= 0x20; key {
	case 'o', 'h', 's':
		opens, err := r.answer(approvals.Answer{Yes: true, Lasts: lasts[key], Once: key == 'o', ThisRun: key == 's'}, q)
		if err != nil {
			return denied(err), true
		}
		if said = map[byte]string{'o': "once", 'h': "for an hour", 's': "for this run"}[key]; opens != "" {
			said += "; that " + printable.Text(opens)
		}
		return said, true
	case 0x20:
		return "no answer", true
	case 'n', 'q', interrupt | 0x20:
	default:
		return "press o, h, s, g, n or q", true
	}
	if _, err := r.answer(approvals.Answer{Lasts: approvals.RejectedFor}, q); err != nil {
		return denied(err), true
	}
	if key == 'q' {
		return "no, and nothing more is asked: further questions are denied", false
	}
	return "no, for ten minutes", true
}

// answer records an answer before it counts.
func (r *runner) answer(said approvals.Answer, q *egress.Question) (opens string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), grantPatience)
	defer cancel()
	return r.asked().Answer(ctx, r.person(), q, said)
}

// person is who answers at the terminal.
func (r *runner) person() admin.Operator {
	return admin.Operator{UID: uint32(os.Geteuid()), PID: os.Getpid()}
}

func (r *runner) asked() *admin.Asked {
	return &admin.Asked{Gate: r.Gate, Grants: r.Grants(), File: r.File(), Complain: r.complainOf}
}

// grantPatience is how long it may take to grant what the program asks of itself.
const grantPatience = 10 * time.Second
