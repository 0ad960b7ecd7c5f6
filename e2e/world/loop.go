package world

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// A LoopCase is one dead end that people met after a denial, or a sibling of one.
// Kind says which way, as L1: a fix that leads to a denial without one.
type LoopCase struct {
	Kind, Name string
	places     string // where it can happen: run, serve, captured, container, pod, listed
	Try        func(t *testing.T, p *FixPlace)
}

const everywhere = "run serve captured container pod"

var loopCases = []LoopCase{
	{"L1", "the next path", "run serve captured pod", eachHasAFix("http GET http://loop.test/one", "http GET http://loop.test/two", "http GET http://loop.test/three")},
	{"L1", "the next method", everywhere, eachHasAFix("http GET http://loop.test/one", "http POST http://loop.test/one")},
	{"L1", "outside of TLS after inside", "run serve captured pod", eachHasAFix("http GET https://loop.test/one", "http GET http://loop.test/one")},

	{"L2", "the fix of a sandbox with a list", "listed", savedForOne("")},
	{"L2", "by the name of the sandbox", "listed", savedForOne("allow loop.test --sandbox listed")},
	{"L2", "a port, by the name of the sandbox", "listed", savedForOne("allow loop.test:80 --sandbox listed")},

	{"L3", "by why", "run", fixOfAnotherFile("why ID")},
	{"L3", "by log", "run", fixOfAnotherFile("log --run last")},
	{"L3", "by the summary", "run", fixOfAnotherFile("log --summary")},

	{"L4", "after a run, without a flag", "run", readersFind("egressd %s", "the log of the last run")},
	{"L4", "by a flag", "run", readersFind("egressd %s --run last", "")},
	{"L4", "of the daemon", "serve captured container pod", readersFind("", "")},

	{"L5", "of log", everywhere, misspelt("log signls", "log signals")},
	{"L5", "of policy", "run serve captured pod", misspelt("policy chekc", "policy check")},
	{"L5", "at the top, beside a flag", "run serve captured pod", misspelt("lgo", "log")},

	{"L7", "allow", "run", typedInside("allow loop.test --from 01KB6ZQ410 --save")},
	{"L7", "log", "run", typedInside("log")},
	{"L7", "the list of runs", "run", typedInside("log --runs")},

	{"L9", "a message", "run serve captured pod", noLogin("-d '{}' http://loop.test/mcp")},
	{"L9", "a stream", "run serve captured pod", noLogin("http://loop.test/sse")},
	{"L9", "a message to what a rule denies", "run serve captured pod", noLogin("-d '{}' http://shut.test/mcp")},
	{"L9", "a message inside TLS", "run", noLogin("-d '{}' https://loop.test/mcp")},

	{"L10", "curl", "run", saysWhyInsideTLS("curl -sS -m9 https://loop.test/")},
	{"L10", "wget", "run", saysWhyInsideTLS("wget -qO- -T9 -t1 --content-on-error https://loop.test/")},
	{"L10", "Python", "run", saysWhyInsideTLS(`python3 -c 'import urllib.request, urllib.error
try: urllib.request.urlopen("https://loop.test/")
except urllib.error.HTTPError as e: print(e.read().decode())'`)},

	{"L11", "in the log", "run captured", askedForANameAlone("log", "filed.test")},
	{"L11", "in the summary", "run captured", askedForANameAlone("log --summary", "without a connection")},
	{"L11", "what env writes", "run serve", func(t *testing.T, p *FixPlace) {
		if said, err := p.Typed(t, p.Command("env")); err != nil || !strings.Contains(said, "NODE_USE_ENV_PROXY='1'") {
			t.Errorf("%v: %s", err, said)
		}
	}},

	{"L12", "a host that no rule is about", everywhere, hintsWork("allow hinted.test")},
	{"L12", "an id that is unknown", "serve captured container pod", hintsWork("allow --undo GNOSUCH")},
	{"L12", "a word that is missing", "serve captured container pod", hintsWork("cut")},
	{"L12", "a log that verifies", everywhere, hintsWork("log verify")},

	{"L13", "of a program", "run", unknownPreset("claude", "claude-code")},
	{"L13", "of a language", "run", unknownPreset("python", "pypi")},
	{"L13", "misspelt", "run", unknownPreset("npmm", "npm")},
	{"L13", "of a denied host", everywhere, func(t *testing.T, p *FixPlace) {
		if why := p.whyDenied(t, "http GET https://api.openai.com/", "api.openai.com:443"); !strings.Contains(why, "codex") {
			t.Errorf("why names no preset:\n%s", why)
		}
	}},
}

// LoopCases returns the cases for a place of one of the kinds.
func LoopCases(kinds ...string) (all []LoopCase) {
	for _, c := range loopCases {
		if slices.ContainsFunc(strings.Fields(c.places), func(kind string) bool { return slices.Contains(kinds, kind) }) {
			all = append(all, c)
		}
	}
	return all
}

// TryLoop tries the cases for a place of one of the kinds, and others.
func (p *FixPlace) TryLoop(t *testing.T, others []LoopCase, kinds ...string) {
	for _, c := range append(LoopCases(kinds...), others...) {
		t.Run(c.Kind+" "+c.Name, func(t *testing.T) { c.Try(t, p) })
	}
}

// passes makes requests, and returns for each whether it passes.
func (p *FixPlace) passes(t *testing.T, requests ...string) (all []bool) {
	t.Helper()
	words, _, _, _ := p.ask(t, &FixCase{request: requests[0], neighbours: requests[1:]})
	for _, word := range words {
		all = append(all, word == "passes")
	}
	return all
}

// passesInTime is passes, once the request of a number passes: a daemon reads its file a moment after it was written.
func (p *FixPlace) passesInTime(t *testing.T, number int, requests ...string) (all []bool) {
	t.Helper()
	Eventually(Patience, func() bool {
		all = p.passes(t, requests...)
		return all[number] || !p.Served
	})
	return all
}

// denied makes a request that is denied, and returns the id of its record and all fixes that are printed for it. A daemon writes one
// record for repeated denials, so denied asks again until its request has a record of its own.
func (p *FixPlace) denied(t *testing.T, request string) (flow string, fixes []string) {
	t.Helper()
	var reply, talk string
	for until := time.Now().Add(Patience); flow == ""; time.Sleep(100 * time.Millisecond) {
		var words []string
		var records []record.Record
		words, reply, talk, records = p.ask(t, &FixCase{request: request})
		if words[0] != "denied" {
			t.Fatalf("%s passes: %s", request, reply)
		}
		for _, r := range records {
			if r.Dst != nil && r.Decision != nil && r.Decision.Action != "allow" && r.Count < 2 {
				flow = r.Flow
			}
		}
		if flow == "" && time.Now().After(until) {
			t.Fatalf("no record denies %s: %+v", request, records)
		}
	}
	why, _ := p.Typed(t, p.Command("why "+flow))
	if fixes = p.fixes(t, flow, reply, talk, why); len(fixes) == 0 {
		t.Fatalf("%s: no fix is printed: %s\n%s", request, reply, why)
	}
	return flow, fixes
}

// whyDenied makes a request that is denied at a place, and returns what egressd why says of it.
func (p *FixPlace) whyDenied(t *testing.T, request, place string) string {
	t.Helper()
	_, _, _, records := p.ask(t, &FixCase{request: request})
	flow := deniedFlow(records, place)
	if flow == "" {
		t.Fatalf("no record denies %s: %+v", place, records)
	}
	why, _ := p.Typed(t, p.Command("why "+flow))
	return why
}

// kept returns a function that undoes what was typed since.
func (p *FixPlace) kept(t *testing.T) func() {
	t.Helper()
	before, err := os.ReadFile(p.Policy)
	if err != nil {
		t.Fatal(err)
	}
	return func() { p.takeBack(t, before) }
}

// types types a line that has to work.
func (p *FixPlace) types(t *testing.T, line string) {
	t.Helper()
	if said, err := p.Typed(t, line); err != nil {
		t.Errorf("%s: %v\n%s", line, err, said)
	}
}

// eachHasAFix has each request denied in turn, and opened by the fix that is printed for it. The requests after it are denied still.
func eachHasAFix(requests ...string) func(t *testing.T, p *FixPlace) {
	return func(t *testing.T, p *FixPlace) {
		forms := []string{""}
		if p.Served { // the fix is a grant, or a line
			forms = append(forms, " --save")
		}
		for _, form := range forms {
			t.Run("as printed"+form, func(t *testing.T) {
				defer p.kept(t)()
				for i, request := range requests {
					_, fixes := p.denied(t, request)
					p.types(t, strings.TrimSpace(fixes[0])+form)
					passes := p.passesInTime(t, i, requests...)
					for j, request := range requests {
						if passes[j] != (j <= i) {
							t.Errorf("after %s%s, %s passes: %t", fixes[0], form, request, passes[j])
						}
					}
				}
			})
		}
	}
}

// savedForOne has a host saved for a sandbox with a list of its own: by the fix of its request, or by a command.
func savedForOne(command string) func(t *testing.T, p *FixPlace) {
	return func(t *testing.T, p *FixPlace) {
		defer p.kept(t)()
		const request = "http GET http://loop.test/one"
		if others := p.Other.passes(t, request); others[0] {
			t.Fatal("the other sandbox reaches it before")
		}
		_, fixes := p.denied(t, request)
		if command == "" {
			p.types(t, strings.TrimSuffix(fixes[0], " --save")+" --save")
		} else {
			p.types(t, p.Command(command+" --save"))
		}
		if own, others := p.passesInTime(t, 0, request), p.Other.passes(t, request); !own[0] || others[0] {
			text, _ := os.ReadFile(p.Policy)
			t.Errorf("it passes for its sandbox %t, and for the other %t:\n%s", own[0], others[0], text)
		}
	}
}

// fixOfAnotherFile has a run with --config denied something. A command without that flag prints a fix, which opens it.
func fixOfAnotherFile(command string) func(t *testing.T, p *FixPlace) {
	return func(t *testing.T, p *FixPlace) {
		defer p.kept(t)()
		const request = "http GET http://loop.test/one"
		flow, _ := p.denied(t, request)
		said, err := p.Typed(t, "egressd "+strings.ReplaceAll(command, "ID", flow))
		fix := strings.TrimSpace(fixLine.FindString(said))
		if err != nil || fix == "" {
			t.Fatalf("%v: no fix in\n%s", err, said)
		}
		p.types(t, fix)
		if !p.passes(t, request)[0] {
			t.Errorf("%s changes nothing", fix)
		}
	}
}

// readers are the commands that read the log.
var readers = []string{"log", "log by host", "log by sandbox,verdict", "log signals", "log --summary", "log export --format json", "log verify", "policy suggest verdict:deny", "why ID"}

// readersFind has all readers of the log find what was denied. line is the command without the reader, or empty for that of the place.
func readersFind(line, says string) func(t *testing.T, p *FixPlace) {
	return func(t *testing.T, p *FixPlace) {
		flow, _ := p.denied(t, "http GET http://loop.test/one")
		for _, reader := range readers {
			reader = strings.ReplaceAll(reader, "ID", flow)
			typed := p.Command(reader)
			if line != "" {
				typed = fmt.Sprintf(line, reader)
			}
			if strings.HasPrefix(reader, "why") {
				typed = strings.TrimSuffix(typed, " --run last")
			}
			said, err := p.Typed(t, typed)
			if err != nil || says != "" && !strings.HasPrefix(reader, "why") && !strings.Contains(said, says) {
				t.Errorf("%s: %v\n%s", typed, err, said)
			}
		}
	}
}

var nextCommand = regexp.MustCompile(`[^\s(]*egressd [a-z][^?;,)]*`)

// misspelt types a command with a typo: it fails, and names the command that is meant, which works there.
func misspelt(words, meant string) func(t *testing.T, p *FixPlace) {
	return func(t *testing.T, p *FixPlace) {
		said, err := p.Typed(t, p.Command(words))
		if err == nil {
			t.Fatalf("it succeeds: %s", said)
		}
		_, after, _ := strings.Cut(said, "egressd: hint: ")
		if next := strings.TrimSpace(nextCommand.FindString(after)); !strings.HasSuffix(next, "egressd "+meant) {
			t.Fatalf("it means %q, not %s:\n%s", next, meant, said)
		}
		p.types(t, p.Command(meant))
	}
}

// typedInside types a command for the person outside in the sandbox, which says so and names the command.
func typedInside(words string) func(t *testing.T, p *FixPlace) {
	return func(t *testing.T, p *FixPlace) {
		out, _, _ := p.Do(t, Egressd.Path()+" "+words+" 2>&1 || echo failed")
		command, _, _ := strings.Cut(words, " --")
		if !strings.Contains(out, "outside: egressd "+command) || !strings.HasSuffix(strings.TrimSpace(out), "failed") {
			t.Errorf("inside, %s: %s", words, out)
		}
	}
}

// noLogin has a client of MCP denied by a status that none takes for a server that wants a login.
func noLogin(request string) func(t *testing.T, p *FixPlace) {
	return func(t *testing.T, p *FixPlace) {
		out, _, _ := p.Do(t, p.Tools+"mcp "+request)
		if status := out[strings.LastIndexByte(out, '\n')+1:]; status != "451" || !strings.Contains(out, "egressd") {
			t.Errorf("answered %q", out)
		}
	}
}

// saysWhyInsideTLS has a client that trusts only what its environment says read the reason.
func saysWhyInsideTLS(command string) func(t *testing.T, p *FixPlace) {
	return func(t *testing.T, p *FixPlace) {
		if out, talk, _ := p.Do(t, command+" 2>&1"); !strings.Contains(out, string(policy.DefaultDeny)) {
			t.Errorf("it reads %q %q", out, talk)
		}
	}
}

// askedForANameAlone has a program ask for a name and go nowhere.
func askedForANameAlone(command, says string) func(t *testing.T, p *FixPlace) {
	return func(t *testing.T, p *FixPlace) {
		p.Do(t, "dig +time=3 +tries=1 filed.test >/dev/null")
		if said, err := p.Typed(t, p.Command(command)); err != nil || !strings.Contains(said, says) {
			t.Errorf("%s: %v\n%s", command, err, said)
		}
	}
}

// ended has a daemon that a line starts end once it listens.
func ended(line string) string {
	if !strings.Contains(line, "egressd serve") {
		return line
	}
	return line + ` 2>said & d=$!; until grep -q 'listening on' said; do kill -0 $d || break; sleep 0.05; done; kill $d; wait $d`
}

// hintsWork types a command that leads on, and then what its hints say to type: all of it works there.
func hintsWork(words string) func(t *testing.T, p *FixPlace) {
	return func(t *testing.T, p *FixPlace) {
		defer p.kept(t)()
		said, _ := p.Typed(t, p.Command(words))
		hints := regexp.MustCompile("(?m)^egressd: hint: .*").FindAllString(said, -1)
		if len(hints) == 0 {
			t.Errorf("%s says nothing to type: %s", words, said)
		}
		for _, line := range hints {
			next, _, _ := strings.Cut(nextCommand.FindString(strings.TrimPrefix(line, "egressd: hint:")), " takes ")
			if next == "" {
				t.Errorf("%s: no command in %q", words, line)
			} else if said, err := p.Typed(t, ended(next)); err != nil {
				t.Errorf("%s, then %s: %v\n%s", words, next, err, said)
			}
		}
	}
}

// unknownPreset has a policy file name a preset by another name. With the one that the error names, it is good.
func unknownPreset(name, meant string) func(t *testing.T, p *FixPlace) {
	return func(t *testing.T, p *FixPlace) {
		path := filepath.Join(t.TempDir(), "presets.yaml")
		check := func(preset string) (string, error) {
			if err := os.WriteFile(path, []byte("version: 1\npresets: ["+preset+"]\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			return p.Typed(t, "egressd policy check "+path)
		}
		said, err := check(name)
		if found := regexp.MustCompile(`did you mean "([^"]+)"`).FindStringSubmatch(said); err == nil || found == nil || found[1] != meant {
			t.Fatalf("%v: %s", err, said)
		}
		if said, err := check(meant); err != nil {
			t.Errorf("%v: %s", err, said)
		}
	}
}
