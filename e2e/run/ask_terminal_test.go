package run

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// askHere asks about single requests to one host, and about all to another.
const askHere = `version: 1
allow: [{host: b.allowed.test, methods: [GET]}]
ask:
  - {host: a.allowed.test, id: asks-a, reason: a person decides}
  - {host: b.allowed.test, methods: [POST], id: asks-b}
limits: {ask_wait: 20s, dial_timeout: 2s}
`

// outerShell is a shell on a terminal, with RUN in its environment.
func outerShell(t *testing.T, d *world.Daemon) *terminal {
	t.Helper()
	outer := exec.Command("bash", "--norc", "--noprofile", "-i")
	outer.Dir = d.Dir
	outer.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir, "PS1=outer> ", "TERM=dumb", "HISTFILE=", "RUN="+world.Egressd.Path()+" run --fail-on-deny --config "+d.Config+" --")
	c := onTerminal(t, d, outer)
	c.until("outer> ")
	return c
}

// TestRunAsksOnItsTerminal has a person answer at the terminal of a run that has no daemon: once, for an hour, and no.
func TestRunAsksOnItsTerminal(t *testing.T) {
	d := world.NewDaemon(t, askHere)
	c := outerShell(t, d)
	const prompt = "ask no more "
	c.types("$RUN sh -c 'for i in 1 2 3; do curl -sS -m30 http://a.allowed.test/$i; echo; done'\n")
	c.types("ooo") // for the program: what is typed before a question is no answer
	first := c.until(prompt)
	if !strings.Contains(first, "asks for a.allowed.test:80 (rule asks-a)") || !strings.Contains(first, "a person decides") || !strings.Contains(first, "curl") {
		t.Errorf("asked %q", first)
	}
	waitQuiet()
	c.types("o")
	if second := c.until(prompt); !strings.Contains(second, "GET /1") || strings.Contains(second, "GET /2") {
		t.Errorf("after once: %q", second)
	}
	waitQuiet()
	c.types("h")
	if rest := c.until("outer> "); !strings.Contains(rest, "GET /2") || !strings.Contains(rest, "GET /3") || strings.Contains(rest, "egressd: question") {
		t.Errorf("after an hour: %q", rest)
	}
	c.types("echo code $?\n")
	c.until("code 0") // an approved request is no denial
	c.until("outer> ")
	said := 0
	for _, r := range lastRun(t, d) {
		if r.Kind == record.KindAdmin && strings.HasPrefix(r.Note, "approve question ") {
			said++
		}
	}
	if said != 2 {
		t.Errorf("%d answers are recorded", said)
	}

	c.types("$RUN sh -c 'curl -sS -m30 http://a.allowed.test/x; echo; curl -sS -m30 http://a.allowed.test/y'\n")
	c.until(prompt)
	waitQuiet()
	c.types("q")
	if rest := c.until("outer> "); strings.Count(rest, `"class":"ask-rejected"`) != 2 || strings.Contains(rest, prompt) {
		t.Errorf("after q: %q", rest)
	}
	c.types("n")
	c.types("\necho code $?\n")
}

// TestAProgramCannotAnswerForThePerson has a program that reads the terminal, writes to it, and sends what a terminal would act
// on, while a person is asked.
func TestAProgramCannotAnswerForThePerson(t *testing.T) {
	d := world.NewDaemon(t, askHere)
	c := outerShell(t, d)
	d.PutFile(t, "program", "(while :; do echo forged; sleep 0.02; done) &\n( (while :; do echo orphan; sleep 0.02; done) & )\ncurl -sS -m30 -d \"$(printf '\\033[2J')\" -X POST http://b.allowed.test/p\nsleep 1; kill $!; exit 3\n")
	c.types("$RUN bash -i program\n")
	asked := c.until("ask no more ")
	if !strings.Contains(asked, "one request to b.allowed.test:80 (rule asks-b)") || !strings.Contains(asked, `the program's request: "POST /p"`) || strings.Contains(asked, "\x1b[2J") {
		t.Errorf("asked %q", asked)
	}
	waitQuiet()
	waitQuiet()
	waitQuiet() // longer than a denial waits for its line
	c.types("n")
	if shown := c.until("no, for ten minutes"); strings.Contains(shown, "forged") || strings.Contains(shown, "orphan") || strings.Contains(shown, "egressd: denied") {
		t.Errorf("the program or egressd writes while a person is asked: %q", shown)
	}
	c.until("orphan") // it goes on
	if end := c.until("outer> "); !strings.Contains(end, "b.allowed.test:80 (ask-rejected") || strings.Contains(end, "ask-pending") {
		t.Errorf("the end says %q", end)
	}
	c.types("echo code $?\n")
	c.until("code 3")
}

// TestNoProgramOutrunsAQuestion has a program of which each process starts another one and ends: it would write over the
// question if it were not stopped. Where it cannot be stopped, nothing is asked until it has ended.
func TestNoProgramOutrunsAQuestion(t *testing.T) {
	d := world.NewDaemon(t, askHere)
	c := outerShell(t, d)
	d.PutFile(t, "hydra.pl", `use Time::HiRes "time"; $| = 1; $end = time + 6;
for (1..4) { next if fork; while (time < $end) { if (fork) { kill 9, $$ } syswrite STDOUT, "forged\n" unless $n++ % 50 } exit }
exec "curl", "-sS", "-m30", "-X", "POST", "http://b.allowed.test/p"
`)
	c.types("$RUN perl hydra.pl\n")
	c.until("ask no more ")
	waitQuiet()
	waitQuiet()
	c.types("n")
	if shown := c.until("no, for ten minutes"); strings.Contains(shown, "forged") {
		t.Errorf("the program writes while a person is asked: %q", shown)
	}
	c.until("outer> ")
}

// TestNoSiblingWritesOverAQuestion has a program make another child of its parent, which is egressd (CLONE_PARENT).
func TestNoSiblingWritesOverAQuestion(t *testing.T) {
	d := world.NewDaemon(t, askHere)
	c := outerShell(t, d)
	d.PutFile(t, "siblings.pl", fmt.Sprintf(`sub sibling { syscall(%d, 0x8000|17, 0, 0, 0, 0) == 0 }
if (sibling) { exit if sibling; for (1..500) { syswrite STDOUT, "forged\n"; select undef, undef, undef, 0.02 } exit }
exec "curl", "-sS", "-m30", "-X", "POST", "http://b.allowed.test/p"
`, unix.SYS_CLONE))
	c.types("$RUN perl siblings.pl\n")
	c.until("ask no more ")
	waitQuiet()
	c.types("n")
	if shown := c.until("no, for ten minutes"); strings.Contains(shown, "forged") {
		t.Errorf("the program writes while a person is asked: %.99q", shown)
	}
	if end := c.until("outer> "); !strings.Contains(end, "left behind: perl") {
		t.Errorf("the end says %q", end)
	}
}

// TestNoThreadWritesOverAQuestion has a process whose first thread has ended.
func TestNoThreadWritesOverAQuestion(t *testing.T) {
	d := world.NewDaemon(t, askHere)
	c := outerShell(t, d)
	d.PutFile(t, "thread.py", fmt.Sprintf(`import ctypes, os, threading, time
def forge():
    for i in range(500): os.write(1, b"forged\n"); time.sleep(0.02)
threading.Thread(target=forge).start()
ctypes.CDLL(None).syscall(%d, 0)
`, unix.SYS_EXIT))
	c.types("$RUN sh -c 'python3 thread.py & sleep 1; exec curl -sS -m30 -X POST http://b.allowed.test/p'\n")
	c.until("ask no more ")
	waitQuiet()
	c.types("n")
	if shown := c.until("no, for ten minutes"); strings.Contains(shown, "forged") {
		t.Errorf("the program writes while a person is asked: %.99q", shown)
	}
	if end := c.until("outer> "); !strings.Contains(end, "left behind: python3") {
		t.Errorf("the end says %q", end)
	}
}

// TestWithoutATerminalRunDeniesAtOnce has nobody to ask.
func TestWithoutATerminalRunDeniesAtOnce(t *testing.T) {
	d := world.NewDaemon(t, askHere)
	r := runAs(t, d, "user", `curl -sS -m9 http://a.allowed.test/`)
	if !strings.Contains(r.out, `"class":"ask-rejected"`) || !strings.Contains(r.out, "egressd run asks on its terminal") || r.denied("a.allowed.test", "ask-rejected") == 0 {
		t.Errorf("%q %q", r.out, r.talk)
	}
}

// waitQuiet waits until a key counts as an answer.
func waitQuiet() { time.Sleep(time.Second) }
