package docs

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab/engine"
	"github.com/egressd/egressd/internal/testfiles"
)

// TestTheReadmeDoesWhatItShows types each command of README.md: those of a block that uses docker as root on a host with an
// engine, all others as the reader of the tutorials.
func TestTheReadmeDoesWhatItShows(t *testing.T) {
	text, err := os.ReadFile(testfiles.Path(t, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	person, host, typed := reader(t, openWorld(t)), hostOfContainers(t), 0
	person.types(t, "mkdir app && cd app")
	for _, block := range testfiles.CodeBlocks(string(text)) {
		steps := stepsOf("```" + block.Kind + "\n" + block.Text + "```\n")
		typed += len(steps)
		p := person
		if strings.Contains(block.Text, "docker") {
			if p = host; p == nil {
				continue
			}
		}
		for _, s := range steps {
			p.follow(t, s)
			if strings.HasPrefix(s.command, "egressd init docker") {
				p.types(t, "echo 'upstream: {dns: [\""+world.Resolver+"\"]}' >>~/.config/egressd/docker/local/egressd.yaml")
			}
		}
	}
	if typed < 10 {
		t.Errorf("README.md has %d commands", typed)
	}
}

// hostOfContainers is root at a shell of a host with Docker's engine, in a world of its own. The host has an image named
// alpine, and its make writes egressd's image as make image does. It returns nil for a user who is not root.
func hostOfContainers(t *testing.T) *typist {
	t.Helper()
	if err := engine.Usable(); err != nil {
		t.Logf("no commands of docker are typed: %v", err)
		return nil
	}
	w, err := world.New()
	if err != nil {
		t.Fatal(err)
	}
	serveSites(w)
	e, err := engine.Start(w.Gateway.Start, world.Probe.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := e.Docker(t.Context(), "tag", engine.Shell, "alpine"); err != nil {
		t.Fatal(err)
	}
	dir := scripts(t, map[string]string{
		"bin/make":    "#!/bin/sh\nmkdir -p build && exec " + world.Imager.Path() + " -binary " + world.Egressd.Path() + " -o build/egressd-image.tar\n",
		"bin/egressd": "#!/bin/sh\nexec " + world.Egressd.Path() + ` "$@"` + "\n",
	})
	cmd := exec.Command("bash")
	cmd.Dir = dir
	cmd.Env = append([]string{"HOME=" + dir, "PATH=" + dir + "/bin:" + os.Getenv("PATH"), "LANG=C.UTF-8"}, e.Environment()...)
	return typistIn(t, w.Gateway, cmd)
}
