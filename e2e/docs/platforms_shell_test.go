package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/testfiles"
)

// fakeSBX stands for sbx in the commands of the page for Docker Sandboxes: it keeps the settings, and sends what it runs through the
// proxy that they name, as sbx does with the traffic of its virtual machines.
const fakeSBX = `#!/bin/sh
mkdir -p $HOME/.sbx
case "$1 $2 $3" in
"settings set proxy.sandbox") [ $# = 4 ] && echo "$4" >$HOME/.sbx/proxy ;;
"policy init allow-all") [ $# = 3 ] ;;
"policy ls --json") [ $# = 3 ] && cat $HOME/.sbx/policy.json ;;
"run "*) shift; exec env ALL_PROXY="$(cat $HOME/.sbx/proxy)" "$@" ;;
*) echo "sbx: unknown command: $*" >&2; exit 2 ;;
esac
`

// sbx is the section about Docker Sandboxes.
const sbx = "Docker Sandboxes (sbx)"

// write has a person make a file with a text.
func (p *typist) write(t *testing.T, name, text string) {
	t.Helper()
	p.types(t, "mkdir -p \"$(dirname "+name+")\" && cat >"+name+" <<'END'\n"+text+"\nEND")
}

// prints fails if a command does not print a text.
func (p *typist) prints(t *testing.T, command, want string) {
	t.Helper()
	if out := strings.Join(p.types(t, command), "\n"); !strings.Contains(out, want) {
		t.Errorf("%s: %s, want %s", command, out, want)
	}
}

// TestSbxSendsItsSandboxesThroughEgressd types the commands of the page for Docker Sandboxes.
func TestSbxSendsItsSandboxesThroughEgressd(t *testing.T) {
	person := reader(t, openWorld(t), map[string]string{"sbx": fakeSBX})
	person.write(t, "egressd.yaml", testfiles.Block(t, settingsPage, "yaml", "## Docker Sandboxes"))
	person.follow(t, step{command: "egressd serve --config egressd.yaml &", shown: []string{"egressd: listening on 127.0.0.1:3130 (proxy)"}})
	for _, begin := range []string{"sbx settings", "sbx policy init"} {
		for _, s := range stepsAbout(t, sbx, begin) {
			person.follow(t, s)
		}
	}
	person.prints(t, "sbx run curl -sS -m9 https://registry.npmjs.org/left-pad", `{"name":"left-pad"}`)
	person.prints(t, "sbx run curl -sS -m9 https://example.com/", "curl: (97)")
	person.prints(t, "egressd log --config egressd.yaml sandbox:sbx verdict:deny", "example.com:443")
	person.prints(t, "egressd log --config egressd.yaml sandbox:sbx verdict:allow", "registry.npmjs.org:443")
}

// TestThePagesOfPlatformsMoveLists types the commands of the pages that import and export lists, with the settings of each tool.
func TestThePagesOfPlatformsMoveLists(t *testing.T) {
	for platform, row := range map[string]struct{ file, example string }{
		"E2B":            {"network.json", "e2b.json"},
		"Daytona":        {"sandbox.json", "daytona.json"},
		"Vercel Sandbox": {"network-policy.json", "vercel.json"},
		"Modal":          {"sandbox.json", `{"outbound_domain_allowlist"`}, // of the page itself
		"Sprites":        {"policy.json", "sprites.json"},
		sbx:              {".sbx/policy.json", "docker.sbx.json"},
	} {
		t.Run(platform, func(t *testing.T) {
			person := reader(t, openWorld(t), map[string]string{"sbx": fakeSBX})
			text := ""
			if strings.HasPrefix(row.example, "{") {
				text = testfiles.Inline(t, settingsPage, row.example)
			} else {
				b, err := os.ReadFile(testfiles.Path(t, "integrations", "peers", "testdata", "import", row.example))
				world.Must(t, err)
				text = string(b)
			}
			person.write(t, row.file, text)
			person.write(t, "egressd.yaml", "version: 1\nallow: [api.anthropic.com]")
			if platform == sbx {
				person.follow(t, stepsAbout(t, platform, "sbx policy ls")[0])
			}
			if platform == "Modal" {
				person.prints(t, testfiles.Inline(t, settingsPage, "egressd policy import --from modal"), "example.com")
			} else {
				for _, s := range stepsAbout(t, platform, "egressd policy ") {
					person.follow(t, s)
				}
			}
			person.follow(t, step{command: "egressd policy check --config egressd.yaml"})
		})
	}
}

// TestAnAgentOfExeDevRunsUnderEgressd types the commands of the page for exe.dev, which has Linux machines.
func TestAnAgentOfExeDevRunsUnderEgressd(t *testing.T) {
	const claude = "#!/bin/sh\ncurl -sS -m9 https://mcp-proxy.anthropic.com/v1/mcp/x\ncurl -sS -m9 https://docs.python.org/\n"
	person := reader(t, openWorld(t), map[string]string{"claude": claude})
	person.prints(t, testfiles.Inline(t, settingsPage, "egressd run --preset"), "host=mcp-proxy.anthropic.com GET /v1/mcp/x") // says a host of the internet
	person.prints(t, "egressd log host:mcp-proxy.anthropic.com verdict:allow", "preset:claude-code")
	person.prints(t, "egressd log host:docs.python.org verdict:deny", "docs.python.org:443")
	person.follow(t, step{command: "egressd init"})
	person.follow(t, step{command: testfiles.Inline(t, settingsPage, "egressd allow")})
	person.prints(t, "egressd check https://my-api.int.exe.xyz/", "allow")
}

// TestAProgramOfReplitRunsUnderEgressd types the commands of the page for Replit, with user namespaces and without.
func TestAProgramOfReplitRunsUnderEgressd(t *testing.T) {
	person := reader(t, openWorld(t))
	person.follow(t, step{command: "egressd init"})
	run := strings.Replace(testfiles.Inline(t, settingsPage, "egressd run -- CMD"), "CMD", "curl -sS -m9 https://example.com/", 1)
	person.prints(t, run, "egressd: denied: example.com:443")
	without := func(command string) string {
		return "unshare --user --map-root-user sh -c 'echo 0 >/proc/sys/user/max_user_namespaces && " + command + "'"
	}
	person.prints(t, without(run), "user namespaces")
	if person.status == 0 {
		t.Error("the program runs without a user namespace")
	}
	person.prints(t, without(testfiles.Inline(t, "how-to/hosted-sandboxes.md", "egressd doctor")), "max_user_namespaces")
}

// TestDclaudesContainerIsNoBoundary types the commands of the page for dclaude on a host with Docker's engine.
func TestDclaudesContainerIsNoBoundary(t *testing.T) {
	host := hostOfContainers(t)
	if host == nil {
		return
	}
	egressd, err := filepath.Abs(world.Egressd.Path())
	world.Must(t, err)
	out := strings.Join(host.types(t, "docker run --rm --network host -v ${DOCKER_HOST#unix://}:/var/run/docker.sock -v "+egressd+":/egressd:ro alpine /"+testfiles.Inline(t, settingsPage, "egressd doctor --inside")), "\n")
	for _, want := range []string{"docker.sock", "--network host"} {
		if !strings.Contains(out, want) {
			t.Errorf("egressd doctor in the container does not speak of %s:\n%s", want, out)
		}
	}
	host.write(t, "egressd.yaml", testfiles.Block(t, "how-to/containers.md", "yaml", "## Start a container with egressd docker run"))
	host.types(t, "mkdir -p /run/egressd app; echo 'upstream: {dns: [\""+world.Resolver+"\"]}' >>egressd.yaml; sed -i 's/registry.npmjs.org/example.com/' egressd.yaml")
	host.follow(t, step{command: "egressd serve --config egressd.yaml &", shown: []string{"egressd: listening on unix:/run/egressd/enter.sock (enter)"}})
	command := stepsAbout(t, "dclaude", "egressd docker run")[0].command
	for url, want := range map[string]string{"http://example.com/": "Example Domain", "http://example.net/": "403"} {
		line := strings.Replace(strings.Replace(command, "IMAGE", "alpine", 1), "claude", "wget -qO- "+url, 1)
		host.prints(t, "cd ~/app; script -qec '"+line+"' /dev/null </dev/null", want) // which makes the terminal for -it
	}
}
