package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

const fixPolicy = "version: 1\n" + world.FixRules + "tls: {ca_dir: ca, extra_roots: [lab.pem]}\n"

// fixSandboxes has one sandbox with a list of its own.
const fixSandboxes = "sandboxes: [{name: listed, token_file: ci.token, allow: [own.test, narrow.test, shut.test]}]\n"

// TestEachPrintedFixOpensWhatWasDenied types every command that egressd prints for a denial, where it was printed:
// the request works then, and its neighbours are as they were. All kinds of requests are made below egressd run alone
// and through the proxies of a daemon; where only the way in differs from these, few are.
func TestEachPrintedFixOpensWhatWasDenied(t *testing.T) {
	alone, listed := fixDaemon(t, fixPolicy), fixDaemon(t, fixPolicy+fixSandboxes)
	tryFixes(t, "alone", fixRun(alone, nil), "any", "machine", "captured")
	inList := fixRun(listed, nil, "--name", "listed")
	inList.Explain += " --sandbox listed"
	tryFixes(t, "alone, with its own list", inList, "listed")
	tryFixes(t, "alone, below an organisation", fixBelow(t), "organisation")

	d := fixServe(t, 3128, 5353, "")
	tryFixes(t, "beside", fixServed(d, func(t *testing.T, script string) *world.Result {
		return runBeside(t, d, nil, script)
	}), "brief", "captured")
	tryFixes(t, "enter", fixServed(d, func(t *testing.T, script string) *world.Result {
		return enter(t, d, waysIn[0], "run", script)
	}), "brief", "captured")
	tryFixes(t, "serve", behind(d, ""), "any", "machine", "serve", "names")
	c := contain(t, d)
	if e := d.Attach(t, "run", c.pid()); e.Code != 0 {
		t.Fatalf("attach: exit %d, %s", e.Code, e.Talk)
	}
	tryFixes(t, "attach", fixServed(d, func(t *testing.T, script string) *world.Result {
		return recorded(t, d, func() string { return c.inside(t, script) })
	}), "brief", "captured")
	own := fixServe(t, 3129, 5354, fixSandboxes)
	tryFixes(t, "beside, with its own list", fixServed(own, func(t *testing.T, script string) *world.Result {
		return runBeside(t, own, []string{"--name", "listed"}, script)
	}), "listed")
}

// TestEachPrintedFixOnAGateway has no proxy: the rules of the page about gateways hand over every connection and every name.
func TestEachPrintedFixOnAGateway(t *testing.T) {
	world.Open(t).Capture(t, world.WayRedirect)
	d := fixDaemon(t, world.WithCapture(fixPolicy, world.WayRedirect))
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	place := fixServed(d, func(t *testing.T, script string) *world.Result {
		return recorded(t, d, func() string {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
			var out bytes.Buffer
			cmd.Stdout = &out
			if err := d.World.Sandbox.Run(cmd); err != nil {
				t.Fatal(err)
			}
			return out.String()
		})
	})
	place.Tools = world.CapturedFixTools
	tryFixes(t, "gateway", place, "container", "names")
}

// fixServe starts a daemon with all listeners.
func fixServe(t *testing.T, port, names int, sandboxes string) *world.Daemon {
	t.Helper()
	d := fixDaemon(t, fmt.Sprintf(`%slisten: {open_to_network: true, proxy: ["%s:%d", "[%s]:%[3]d"], dns: ["%[2]s:%[5]d"], enter: ["unix:${XDG_RUNTIME_DIR}/run/enter.sock"]}`+"\n",
		fixPolicy+sandboxes, lab.GatewayIPv4, port, lab.GatewayIPv6, names))
	d.Port = port
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	return d
}

// fixServed is a place whose requests a daemon decides.
func fixServed(d *world.Daemon, do func(t *testing.T, script string) *world.Result) *world.FixPlace {
	p := fixPlace(d, nil, func(t *testing.T, script string) (string, string, []record.Record) {
		e := do(t, script)
		return e.Out, e.Talk, e.Records
	})
	p.Served = true
	return p
}

func tryFixes(t *testing.T, name string, p *world.FixPlace, kinds ...string) {
	t.Run(name, func(t *testing.T) {
		for _, c := range world.FixCases(kinds...) {
			t.Run(c.Name, func(t *testing.T) { p.Try(t, &c) })
		}
	})
}

// recorded returns what f prints, and the records of the daemon from its time.
func recorded(t *testing.T, d *world.Daemon, f func() string) *world.Result {
	t.Helper()
	mark, err := d.Log.Mark()
	if err != nil {
		t.Fatal(err)
	}
	e := &world.Result{Out: f()}
	if e.Records, err = d.Log.Since(mark); err != nil {
		t.Fatal(err)
	}
	return e
}

func fixDaemon(t *testing.T, policy string) *world.Daemon {
	d := world.NewDaemon(t, policy)
	d.PutFile(t, "policy/egress.rego", world.FixRego)
	return d
}

// fixPlace returns a place on the gateway. Its commands are typed in another folder than that of the policy. The program
// before, if any, starts them in a namespace.
func fixPlace(d *world.Daemon, before []string, do func(t *testing.T, script string) (out, talk string, records []record.Record)) *world.FixPlace {
	return &world.FixPlace{
		Tools: world.FixTools, Do: do, Policy: d.Config,
		Command: func(words string) string { return "egressd " + words + " --config " + d.Config },
		Typed: func(t *testing.T, line string) (said string, err error) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			words := slices.Concat(before, []string{"sh", "-c", line})
			cmd := exec.CommandContext(ctx, words[0], words[1:]...)
			cmd.Dir = t.TempDir()
			cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(world.Egressd.Path())+":"+os.Getenv("PATH"), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir, "XDG_RUNTIME_DIR="+d.Dir)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err = d.World.Gateway.Run(cmd)
			if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			return out.String(), err
		},
	}
}

// fixRun is a place below egressd run without a daemon.
func fixRun(d *world.Daemon, before []string, flags ...string) *world.FixPlace {
	p := fixPlace(d, before, func(t *testing.T, script string) (string, string, []record.Record) {
		e := d.RunCommand(t, before, slices.Concat([]string{"run", "--config", d.Config}, flags, []string{"--", "sh", "-c", script})...)
		return e.Out, e.Talk, lastRun(t, d)
	})
	p.Explain = "check -v"
	return p
}

// fixBelow is a place below a file of an organisation.
func fixBelow(t *testing.T) *world.FixPlace {
	d := fixDaemon(t, "version: 1\nallow: [filed.test]\n"+"tls: {ca_dir: ca, extra_roots: [lab.pem]}\n")
	d.PutFile(t, "above/egressd/organisation.yaml", "version: 1\nceiling: [plain.test, \"*.plain.test\", barred.test]\ndeny: [{host: barred.test, id: org-bars, reason: the organisation says so}]\n")
	const script = `mount -t overlay -o "lowerdir=$0:/etc" none /etc && exec "$@"`
	return fixRun(d, []string{"unshare", "--mount", "sh", "-c", script, filepath.Join(d.Dir, "above")})
}
