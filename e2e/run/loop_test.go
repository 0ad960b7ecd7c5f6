package run

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

// TestTheLoopHasNoDeadEnd goes from a denial to the next request by what egressd prints, in each way in which somebody went astray there,
// under run, behind the proxy of a daemon, and in a network that entered. e2e/containers tries the same in containers and a pod.
func TestTheLoopHasNoDeadEnd(t *testing.T) {
	counts := map[string]int{}
	try := func(name string, p *world.FixPlace, others []world.LoopCase, kinds ...string) {
		for _, c := range append(world.LoopCases(kinds...), others...) {
			counts[c.Kind]++
		}
		t.Run(name, func(t *testing.T) { p.TryLoop(t, others, kinds...) })
	}
	try("run", fixRunOfUser(t), slices.Concat(atATerminal, moreThanNamed), "run")
	const two = "sandboxes: [{name: listed, token_file: ci.token, allow: [own.test, narrow.test, shut.test]}, {name: other, token_file: web.token}]\n"
	listed := fixDaemon(t, fixPolicy+two)
	inList := fixRun(listed, nil, "--name", "listed")
	inList.Other = fixRun(listed, nil, "--name", "other")
	try("two runs", inList, nil, "listed")

	d := fixServe(t, 3128, 5353, "")
	try("serve", behind(d, ""), nil, "serve")
	try("enter", fixServed(d, func(t *testing.T, script string) *world.Result {
		return enter(t, d, waysIn[0], "run", script)
	}), nil, "captured")
	own := fixServe(t, 3129, 5354, two)
	inList = behind(own, "listed:open-sesame@")
	inList.Other = behind(own, "other:another-secret@")
	try("two sandboxes of a daemon", inList, nil, "listed")

	for _, kind := range []string{"L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L9", "L10", "L11", "L12", "L13"} {
		if counts[kind] < 3 {
			t.Errorf("%d cases of %s; want one and two siblings", counts[kind], kind)
		}
	}
}

// behind is a place whose programs use the proxy of a daemon. user is empty, or the user and password of a sandbox and @.
func behind(d *world.Daemon, user string) *world.FixPlace {
	return fixServed(d, func(t *testing.T, script string) *world.Result {
		return recorded(t, d, func() string {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", "VIA='-x http://"+user+d.Address()+"'; SOCKS="+d.Address()+"; NAMES="+lab.GatewayIPv4+":5353\n"+script)
			var out bytes.Buffer
			cmd.Stdout = &out
			if err := d.World.Sandbox.Run(cmd); err != nil {
				t.Fatal(err)
			}
			return out.String()
		})
	})
}

// atATerminal are the cases of a person who is asked at the terminal of a run.
var atATerminal = []world.LoopCase{
	{Kind: "L6", Name: "a question that is answered by no", Try: askedAtATerminal("n", "ask-rejected")},
	{Kind: "L6", Name: "a question that ends all of them", Try: askedAtATerminal("q", "ask-rejected")},
	{Kind: "L6", Name: "a question that is answered by yes", Try: askedAtATerminal("o", "")},
}

// askedAtATerminal has a request denied just before a person is asked. That is said once the question is answered, and the end says
// what became of the question.
func askedAtATerminal(key, class string) func(t *testing.T, p *world.FixPlace) {
	return func(t *testing.T, _ *world.FixPlace) {
		d := world.NewDaemon(t, askHere)
		c := outerShell(t, d)
		c.types("$RUN sh -c 'curl -sS -m9 http://evil.test/ >denied; curl -sS -m30 http://a.allowed.test/q'\n")
		c.until("ask no more ")
		waitQuiet()
		if key == "n" {
			waitQuiet()
			waitQuiet() // longer than a denial waits for its line
		}
		c.types(key)
		end := c.until("outer> ")
		prompt, rest, found := strings.Cut(end, "\n")
		if !found || strings.Contains(prompt, "denied:") {
			t.Errorf("over the question: %q", end)
		}
		if asked := strings.Contains(rest, "a.allowed.test:80 ("+class); !strings.Contains(rest, "denied: evil.test:80") || strings.Contains(rest, "ask-pending") || asked != (class != "") {
			t.Errorf("after it: %q", end)
		}
	}
}

// moreThanNamed are the cases of a run that has no policy file.
var moreThanNamed = []world.LoopCase{
	{Kind: "L8", Name: "one host", Try: opensAlone([]string{"--allow", "named.test"}, "named.test")},
	{Kind: "L8", Name: "two hosts", Try: opensAlone([]string{"--allow", "named.test", "--allow", "two.test:80"}, "named.test two.test")},
	{Kind: "L8", Name: "a host and a preset", Try: opensAlone([]string{"--allow", "named.test", "--preset", "starter"}, "named.test github.com registry.npmjs.org pypi.org proxy.golang.org")},
}

// opensAlone has a run without a policy file reach the hosts, and none else.
func opensAlone(flags []string, hosts string) func(t *testing.T, p *world.FixPlace) {
	return func(t *testing.T, _ *world.FixPlace) {
		d := world.NewDaemon(t, "version: 1\n")
		if err := os.Remove(d.Config); err != nil {
			t.Fatal(err)
		}
		var script strings.Builder
		all := strings.Fields("named.test two.test sub.named.test github.com registry.npmjs.org pypi.org proxy.golang.org api.anthropic.com api.openai.com")
		for _, host := range all {
			script.WriteString("curl -s -m9 http://" + host + "/\n")
		}
		argv := slices.Concat([]string{"run"}, flags, []string{"--", "sh", "-c", script.String() + "true"})
		if e := d.RunCommand(t, world.Users["user"], argv...); e.Code != 0 {
			t.Fatalf("exit %d, %s", e.Code, e.Talk)
		}
		var reached []string
		for _, r := range lastRunIn(t, filepath.Join(d.Dir, "egressd")) {
			if r.Decision != nil && r.Decision.Action == "allow" && r.Dst != nil && !slices.Contains(reached, r.Dst.Host) {
				reached = append(reached, r.Dst.Host)
			}
		}
		if got := strings.Join(reached, " "); got != hosts {
			t.Errorf("%q opens %q, want %q", flags, got, hosts)
		}
	}
}

// fixRunOfUser is a place below egressd run, typed by an ordinary user, with a policy file that names no folder for the log.
func fixRunOfUser(t *testing.T) *world.FixPlace {
	d := fixDaemon(t, fixPolicy)
	text := strings.Replace(policyText(t, d), "dir: audit, ", "", 1)
	d.PutFile(t, "egressd.yaml", text)
	p := fixRun(d, world.Users["user"])
	p.Do = func(t *testing.T, script string) (string, string, []record.Record) {
		e := d.RunCommand(t, world.Users["user"], "run", "--config", d.Config, "--", "sh", "-c", script)
		return e.Out, e.Talk, lastRunIn(t, filepath.Join(d.Dir, "egressd"))
	}
	return p
}
