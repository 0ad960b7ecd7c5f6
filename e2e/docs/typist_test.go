// Package docs types the commands of the documentation, and compares what it shows with what they print.
package docs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
)

// A step is a command of a page, and the lines that the page shows below it.
type step struct {
	command string
	shown   []string
}

// stepsOf returns the commands of a page. In a block "console" a command begins with "$ ", and its output
// follows, for a command in the background also later. A block "sh" is one command without output.
func stepsOf(page string) (all []step) {
	kind := ""
	var script []string
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		fence, isFence := strings.CutPrefix(line, "```")
		command, isCommand := strings.CutPrefix(line, "$ ")
		last := len(all) - 1
		switch {
		case isFence && kind == "":
			kind = "(" + fence + ")"
			script = nil
		case isFence:
			if kind == "(sh)" {
				all = append(all, step{command: strings.Join(script, "\n")})
			}
			kind = ""
		case kind == "(sh)":
			script = append(script, line)
		case kind != "(console)" || line == "":
		case isCommand:
			all = append(all, step{command: command})
		case last >= 0 && strings.HasSuffix(all[last].command, "\\"):
			all[last].command += "\n" + line
		case last >= 0:
			all[last].shown = append(all[last].shown, line)
		}
	}
	return all
}

// A typist types commands into a shell.
type typist struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan string
	status int               // exit status of the last command
	known  map[string]string // what this session has in place of a text of the page, such as an id
}

const endOfStep = "-- end of step --"

// typistIn starts a shell in a network. At the end of the test the shell ends what runs in its background, so the
// command must have no context of the test.
func typistIn(t *testing.T, n *lab.Net, cmd *exec.Cmd) *typist {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	p := &typist{cmd: cmd, in: in, lines: make(chan string), known: map[string]string{}}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		io.WriteString(in, "kill $(jobs -p) 2>/dev/null; exit\n")
		in.Close()
		for range p.lines {
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Error(err)
		}
	})
	return p
}

// types types a command, and returns what it prints on both outputs.
func (p *typist) types(t *testing.T, command string) (printed []string) {
	t.Helper()
	for page, here := range p.known {
		command = strings.ReplaceAll(command, page, here)
	}
	fmt.Fprintf(p.in, "%s\n{ status=$?; echo; echo \"%s $status\"; }\n", command, endOfStep)
	timeout := time.After(time.Minute)
	for {
		select {
		case line, open := <-p.lines:
			switch {
			case !open:
				t.Fatalf("the shell ended after %q: %q", command, printed)
			case strings.HasPrefix(line, endOfStep):
				fmt.Sscan(line[len(endOfStep):], &p.status)
				if last := len(printed) - 1; printed[last] == "" {
					printed = printed[:last]
				}
				return printed
			}
			printed = append(printed, line)
		case <-timeout:
			t.Fatalf("%q goes on after a minute: %q", command, printed)
		}
	}
}

// follow types a step, and compares its output with what the page shows.
func (p *typist) follow(t *testing.T, s step) {
	t.Helper()
	printed := p.types(t, s.command)
	if strings.HasSuffix(s.command, " &") {
		world.Eventually(time.Minute, func() bool {
			printed = append(printed, p.types(t, "sleep 0.1")...)
			return p.findsAll(s.shown, printed)
		})
	}
	t.Logf("$ %s\n%s", s.command, strings.Join(printed, "\n"))
	if len(s.shown) == 0 && p.status != 0 {
		t.Errorf("%s\nexit status %d, of which the page shows nothing\n%s", s.command, p.status, strings.Join(printed, "\n"))
	}
	for _, shown := range s.shown {
		if !p.finds(shown, printed) {
			t.Errorf("%s\nthe page shows %q\nprinted is\n%s", s.command, shown, strings.Join(printed, "\n"))
		}
	}
}

func (p *typist) findsAll(shown, printed []string) bool {
	return !slices.ContainsFunc(shown, func(line string) bool { return !p.finds(line, printed) })
}

// finds reports whether a line that a page shows was printed. Ids, times, sizes and the like may differ, and
// "…" stands for any text. Ids and runs are kept, for the commands that name them.
func (p *typist) finds(shown string, printed []string) bool {
	pattern, texts := patternOf(shown)
	line := regexp.MustCompile(pattern)
	for _, text := range printed {
		match := line.FindStringSubmatch(text)
		if match == nil {
			continue
		}
		for i, of := range texts {
			p.known[of] = match[i+1]
		}
		return true
	}
	return false
}

// differs are the parts of an output that differ from time to time. The first of them are kept.
var differs = []string{
	`\b[0-9A-HJKMNP-TV-Z]{10}\b`,                    // the id of a request
	`\b20[0-9]{6}-[0-9]{6}\.[0-9]{3}-[0-9a-f]{6}\b`, // a run
	`\b[0-9a-f]{8}…`,                                // the beginning of a digest
	`\bsha256:[0-9a-f]{8,64}`,                       // a digest
	`20[0-9]{2}-[0-9]{2}-[0-9]{2}[T ][0-9:.]+Z?|\b[0-9]{2}:[0-9]{2}:[0-9]{2}\b`, // times
	`\b[0-9]+(?:\.[0-9]+)? (?:k|M)?B\b`,                                         // bytes
	`\b[0-9]+(?:\.[0-9]+)? (?:m|µ)?s\b`,                                         // durations
	`\bpid [0-9]+|process [0-9]+`,
	`egressd/[0-9a-f]{32}(?:\+[0-9a-f]{8}\+[A-Za-z0-9+/=]+)?`, // a log and its key
	` {2,}`, // of columns
	`…`,
}

const kept = 2

var differing = regexp.MustCompile("(" + strings.Join(differs, ")|(") + ")")

// patternOf returns a regular expression for a shown line, and the texts of the page that its groups stand for.
func patternOf(shown string) (pattern string, texts []string) {
	var b strings.Builder
	b.WriteString("^")
	at := 0
	for _, m := range differing.FindAllStringSubmatchIndex(shown, -1) {
		b.WriteString(regexp.QuoteMeta(shown[at:m[0]]))
		kind := slices.IndexFunc(differs, func(string) bool { return false })
		for i := range differs {
			if m[2+2*i] >= 0 {
				kind = i
			}
		}
		switch {
		case shown[m[0]:m[1]] == "…":
			b.WriteString(".*")
		case kind < kept:
			b.WriteString("(" + differs[kind] + ")")
			texts = append(texts, shown[m[0]:m[1]])
		default:
			b.WriteString("(?:" + differs[kind] + ")")
		}
		at = m[1]
	}
	b.WriteString(regexp.QuoteMeta(shown[at:]) + `\s*$`)
	return b.String(), texts
}
