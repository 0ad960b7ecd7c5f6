package docs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/testfiles"
	"github.com/egressd/egressd/record"
)

// Nothing of these platforms runs here. Fakes take the settings of the pages, in the fields that the platforms document, and do what
// their documents say that the settings do. Fields that are not documented are errors.

const (
	serverAddress  = "203.0.113.7" // of egressd in the pages; the gateway has it
	privateAddress = "10.8.0.7"    // the same in a private network
	platformToken  = "s3cret-of-the-platform"
)

// A platform is a fake of a hosted platform. Its sandbox is the lab's, which reaches the whole internet through the gateway
// until [platform.only] restricts it.
type platform struct {
	*world.Daemon
	dir string
}

// openPlatform starts egressd with the policy of a page. Tokens are the files that the policy names.
func openPlatform(t *testing.T, page, sandboxes string, tokens ...string) *platform {
	t.Helper()
	return openPlatformAt(t, "", page, sandboxes, tokens...)
}

// openPlatformAt is openPlatform with another listener than that of the page, and another entry for the sandbox; empty, they are the page's.
func openPlatformAt(t *testing.T, listener, page, sandboxes string, tokens ...string) *platform {
	t.Helper()
	w := openWorld(t)
	page, section, _ := strings.Cut(page, "#")
	policy := testfiles.Block(t, "how-to/"+page, "yaml", "# "+section)
	if sandboxes != "" {
		policy = strings.Replace(policy, "{name: agent, token_file: agent.token}", sandboxes, 1)
	}
	for _, own := range []string{"tls:0.0.0.0:3443", "0.0.0.0:1080"} {
		policy = strings.Replace(policy, `["`+own+`"`, `["`+cmp.Or(listener, own)+`", "127.0.0.1:3128"`, 1) // Run waits for two listeners
	}
	d := world.NewDaemonIn(t, w, policy)
	for _, name := range tokens {
		d.PutFile(t, name, platformToken)
	}
	for _, address := range []string{serverAddress, privateAddress} {
		world.Must(t, w.Gateway.IP("addr add "+address+"/32 dev gw0"))
		t.Cleanup(func() { world.Must(t, w.Gateway.IP("addr del "+address+"/32 dev gw0")) })
	}
	world.Must(t, w.Gateway.Run(exec.Command("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")))
	t.Cleanup(func() {
		world.Must(t, w.Gateway.Run(exec.Command("sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward")))
	})
	world.Must(t, w.Route())
	t.Cleanup(func() { world.Must(t, w.Unroute()) })
	world.Must(t, w.Gateway.Load("table inet platform {\n chain out { type nat hook postrouting priority 100; oifname gw1 masquerade; }\n}\n"))
	t.Cleanup(func() { world.Must(t, w.Gateway.Load("delete table inet platform\n")) })
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	p := &platform{Daemon: d, dir: t.TempDir()}
	if !p.reaches(t) {
		t.Fatal("the sandbox does not reach the internet before anything restricts it")
	}
	return p
}

// only lets the sandbox reach some prefixes and nothing else, as the platform's firewall does outside of it.
func (p *platform) only(t *testing.T, prefixes ...string) {
	t.Helper()
	to := "ip daddr { " + strings.Join(prefixes, ", ") + " }"
	if len(prefixes) == 0 {
		to = "ip daddr 255.255.255.255"
	}
	world.Must(t, p.World.Gateway.Load(fmt.Sprintf(`table inet platform {
	chain forward { type filter hook forward priority 0; policy drop; ct state established accept; %[1]s accept; }
	chain input { type filter hook input priority 0; policy accept; ct state established accept; iifname gw0 %[1]s accept; iifname gw0 drop; }
}
`, to)))
}

// curl runs curl in the sandbox with these variables, and returns what it prints. It knows where egress.example.com is.
func (p *platform) curl(t *testing.T, variables []string, arguments string) string {
	t.Helper()
	line := "env -u http_proxy -u https_proxy -u HTTP_PROXY -u HTTPS_PROXY"
	for _, v := range variables {
		line += " '" + v + "'"
	}
	for _, port := range []string{"443", "1080", "3443"} {
		arguments = "--resolve egress.example.com:" + port + ":" + serverAddress + " " + arguments
	}
	out, _ := p.Shell(p.dir, p.World.Origin.Ca.File(t), line+" curl -sS -m9 --cacert $LAB_CA --proxy-cacert "+filepath.Join(p.Dir, "egressd", "ca", "ca.pem")+" "+arguments+" 2>&1")
	return out
}

// reaches reports whether a program that ignores proxies reaches a host of the internet.
func (p *platform) reaches(t *testing.T) bool {
	t.Helper()
	return strings.Contains(p.curl(t, nil, "--noproxy '*' -m2 --resolve example.com:80:"+world.AllowedIPv4+" http://example.com/"), "Example Domain")
}

// holds fails if egressd does not hold what the sandbox sends by curl with these arguments and variables: an allowed host answers, another
// is denied, and both stand in the log with the name of the sandbox.
func (p *platform) holds(t *testing.T, sandbox string, variables []string, arguments string) {
	t.Helper()
	mark := p.LogMark(t)
	if out := p.curl(t, variables, arguments+" https://registry.npmjs.org/left-pad"); !strings.Contains(out, `{"name":"left-pad"}`) {
		t.Errorf("an allowed host: %s", out)
	}
	if out := p.curl(t, variables, arguments+" https://example.com/"); strings.Contains(out, "Example Domain") || !strings.Contains(out, "curl: (") {
		t.Errorf("a denied host: %s", out)
	}
	for _, action := range []string{"allow", "deny"} {
		recorded := func() bool {
			all, _ := p.Log.Since(mark)
			return slices.ContainsFunc(all, func(r record.Record) bool {
				return r.Kind != record.KindDNS && r.Decision != nil && r.Decision.Action == action && r.Sandbox == sandbox
			})
		}
		if !world.Eventually(world.Settling, recorded) {
			all, _ := p.Log.Since(mark)
			t.Errorf("no record of %s, of sandbox %s, in %+v", action, sandbox, all)
		}
	}
}

// settingsPage has a section for each platform but E2B, which has one in the how-to.
const settingsPage = "reference/platforms.md"

// about is the section about a platform.
func about(t *testing.T, platform string) string {
	t.Helper()
	page := settingsPage
	if platform == "E2B" {
		page = "how-to/hosted-sandboxes.md"
	}
	_, section, found := strings.Cut(testfiles.Page(t, page), "\n## "+platform+"\n")
	if !found {
		t.Fatalf("%s has no section %s", page, platform)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	return section
}

// called runs the first block of a kind about a platform with a fake of the platform's library, and decodes the settings that the block gives to it.
func called(t *testing.T, platform, kind, interpreter, library string, into any) {
	t.Helper()
	blocks := testfiles.CodeBlocks(about(t, platform))
	i := slices.IndexFunc(blocks, func(b testfiles.CodeBlock) bool { return b.Kind == kind })
	if i < 0 {
		t.Fatalf("%s has no block %s", platform, kind)
	}
	block := blocks[i].Text
	if kind == "js" {
		block = "(async () => {\n" + block + "})()\n"
	}
	file := filepath.Join(testfiles.FilesIn(t, map[string]string{"call": library + "\n" + strings.ReplaceAll(block, ":TOKEN@", ":"+platformToken+"@")}), "call")
	cmd := exec.Command(interpreter, file)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", block, err)
	}
	strict := json.NewDecoder(strings.NewReader(string(out)))
	strict.DisallowUnknownFields()
	if err := strict.Decode(into); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
}

const fakeJS = `const TOKEN = '` + platformToken + `', fake = { create: async settings => { console.log(JSON.stringify(settings)); return {} } }
const Sandbox = fake, daytona = fake;`

const fakePython = `import json
class modal:
    class Sandbox:
        @staticmethod
        def create(*command, app, **settings):
            print(json.dumps(settings))
app = object()`

// TestE2BSendsASandboxThroughEgressd: E2B connects from outside of the sandbox, by SOCKS5 and for the address that the program asked for.
func TestE2BSendsASandboxThroughEgressd(t *testing.T) {
	p := openPlatform(t, "hosted-sandboxes.md#E2B", "", "build.token", "review.token")
	var settings struct {
		Network struct {
			EgressProxy struct{ Address, Username, Password string }
		}
	}
	called(t, "E2B", "js", "node", fakeJS, &settings)
	proxy := settings.Network.EgressProxy
	if !strings.HasPrefix(proxy.Username, "build-") || proxy.Password != platformToken {
		t.Errorf("the proxy is %+v", proxy)
	}
	const elsewhere = "151.101.1.70" // that E2B's sandbox resolved; no host of the world has it
	p.holds(t, proxy.Username, nil, fmt.Sprintf("--socks5 %s --proxy-user %s:%s --resolve registry.npmjs.org:443:%s --resolve example.com:443:%[4]s", proxy.Address, proxy.Username, proxy.Password, elsewhere))
}

// TestDaytonaSendsASandboxThroughEgressd: with a list of names, Daytona leads their ports 80 and 443 through the proxy.
func TestDaytonaSendsASandboxThroughEgressd(t *testing.T) {
	p := openPlatform(t, "hosted-sandboxes.md", testfiles.Inline(t, settingsPage, "{name:"), "daytona.token")
	var settings struct{ OutboundProxyURL, DomainAllowList string }
	called(t, "Daytona", "js", "node", fakeJS, &settings)
	if !slices.Contains(strings.Split(settings.DomainAllowList, ","), "registry.npmjs.org") {
		t.Errorf("the list is %q", settings.DomainAllowList)
	}
	p.only(t, serverAddress+"/32")
	if p.reaches(t) {
		t.Error("the sandbox reaches hosts past the proxy")
	}
	p.holds(t, "daytona-ID", nil, "-x "+settings.OutboundProxyURL)
}

// TestModalSendsASandboxThroughEgressd: Modal lets the sandbox reach some ranges, and sets its variables.
func TestModalSendsASandboxThroughEgressd(t *testing.T) {
	p := openPlatform(t, "hosted-sandboxes.md", "", "agent.token")
	var settings struct {
		Ranges []string          `json:"outbound_cidr_allowlist"`
		Env    map[string]string `json:"env"`
	}
	called(t, "Modal", "python", "python3", fakePython, &settings)
	p.only(t, settings.Ranges...)
	if p.reaches(t) {
		t.Error("the sandbox reaches hosts past its list")
	}
	p.holds(t, "agent", variables(settings.Env), "")
}

// TestVercelSendsASandboxThroughEgressd: Vercel lets the sandbox reach some names, and sets its variables.
func TestVercelSendsASandboxThroughEgressd(t *testing.T) {
	p := openPlatform(t, "hosted-sandboxes.md", "", "agent.token")
	var settings struct {
		NetworkPolicy struct{ Allow []string }
		Env           map[string]string
	}
	called(t, "Vercel Sandbox", "js", "node", fakeJS, &settings)
	if !slices.Equal(settings.NetworkPolicy.Allow, []string{"egress.example.com"}) {
		t.Errorf("the list is %q", settings.NetworkPolicy.Allow)
	}
	p.only(t, serverAddress+"/32")
	if p.reaches(t) {
		t.Error("the sandbox reaches hosts past its list")
	}
	p.holds(t, "agent", variables(settings.Env), "")
}

// TestAContainerOfCloudflareUsesAProxyAtPort443: a container reaches the hosts of its list at ports 80 and 443 alone.
func TestAContainerOfCloudflareUsesAProxyAtPort443(t *testing.T) {
	p := openPlatformAt(t, "tls:"+serverAddress+":443", "hosted-sandboxes.md", "", "agent.token")
	p.only(t, serverAddress+" } tcp dport { 80, 443")
	if p.reaches(t) {
		t.Error("the container reaches hosts past its list")
	}
	p.holds(t, "agent", []string{"HTTPS_PROXY=https://agent:" + platformToken + "@egress.example.com:443"}, "")
}

func variables(env map[string]string) (all []string) {
	for name, value := range env {
		all = append(all, name+"="+value)
	}
	return all
}

// TestASpriteReachesEgressdAlone: the name server of a Sprite answers by its list, which its API takes.
func TestASpriteReachesEgressdAlone(t *testing.T) {
	p := openPlatform(t, "hosted-sandboxes.md", "", "agent.token")
	var list struct {
		Rules []struct{ Domain, Action string }
	}
	p.World.Origin.Sites.Store("api.sprites.dev", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		strict := json.NewDecoder(r.Body)
		strict.DisallowUnknownFields()
		switch {
		case r.Method != http.MethodPost || r.URL.Path != "/v1/sprites/NAME/policy/network" || r.Header.Get("Authorization") != "Bearer of-sprites":
			w.WriteHeader(http.StatusBadRequest)
		case strict.Decode(&list) != nil:
			w.WriteHeader(http.StatusUnprocessableEntity)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	t.Cleanup(func() { p.World.Origin.Sites.Delete("api.sprites.dev") })
	person := reader(t, p.World)
	person.types(t, "export SPRITES_TOKEN=of-sprites")
	person.types(t, "mkdir -p .config/egressd && cp "+p.Config+" "+filepath.Join(p.Dir, "agent.token")+" .config/egressd/")
	for _, s := range stepsAbout(t, "Sprites", "curl ") {
		person.follow(t, s)
	}
	answers := func(name string) bool { // the first rule that speaks of the name
		for _, rule := range list.Rules {
			if rule.Domain == name || rule.Domain == "*" {
				return rule.Action == "allow"
			}
		}
		return false
	}
	if !answers("egress.example.com") || answers("registry.npmjs.org") || answers("example.com") {
		t.Fatalf("the list is %+v", list)
	}
	var env []string
	for _, line := range person.types(t, testfiles.Inline(t, settingsPage, "egressd env")) {
		if assignment, ok := strings.CutPrefix(line, "export "); ok {
			env = append(env, strings.ReplaceAll(assignment, "'", ""))
		}
	}
	p.holds(t, "agent", env, "")
}

// TestCloudRunSendsASandboxThroughEgressd: sandbox do has no network, and with --allow-egress that of the container, whose firewall
// lets it reach one machine.
func TestCloudRunSendsASandboxThroughEgressd(t *testing.T) {
	p := openPlatform(t, "hosted-sandboxes.md", "", "agent.token")
	p.only(t, privateAddress+"/32")
	if p.reaches(t) {
		t.Error("the sandbox reaches hosts past the firewall")
	}
	bin := scripts(t, map[string]string{
		"sandbox": "#!/bin/sh\n[ \"$1\" = do ] || exit 2; shift\n" +
			"case $1 in --allow-egress) shift; shift; exec \"$@\";; --) shift; exec unshare --net \"$@\";; *) exit 2;; esac\n",
		"npm": "#!/bin/sh\nexec curl -sS -m9 --cacert $LAB_CA --proxy-cacert " + filepath.Join(p.Dir, "egressd", "ca", "ca.pem") + " https://${HOST:-registry.npmjs.org}/left-pad\n",
	})
	steps := stepsAbout(t, "Cloud Run", "sandbox do")
	if len(steps) != 1 {
		t.Fatalf("the page has %d commands", len(steps))
	}
	command := strings.ReplaceAll(steps[0].command, ":TOKEN@", ":"+platformToken+"@")
	mark := p.LogMark(t)
	for line, want := range map[string]string{
		command: `{"name":"left-pad"}`,
		"HOST=example.com; export HOST; " + command:        "curl: (56) CONNECT tunnel failed, response 403",
		strings.Replace(command, "--allow-egress ", "", 1): "curl: (7)",
	} {
		out, _ := p.Shell(p.dir, p.World.Origin.Ca.File(t), "unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY; PATH="+bin+":$PATH; "+line+" 2>&1")
		if !strings.Contains(out, want) {
			t.Errorf("%s: %s, want %s", line, out, want)
		}
	}
	if !world.Eventually(world.Settling, func() bool { all, _ := p.Log.Since(mark); return world.CountDenials(all, "agent", "example.com") == 1 }) {
		t.Error("no record of the denial")
	}
}

// stepsAbout are the commands about a platform that begin with a text.
func stepsAbout(t *testing.T, platform, begin string) (found []step) {
	t.Helper()
	for _, block := range testfiles.CodeBlocks(about(t, platform)) {
		for _, s := range stepsOf("```" + block.Kind + "\n" + block.Text + "```\n") {
			if strings.HasPrefix(s.command, begin) {
				found = append(found, s)
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s has no command %s", platform, begin)
	}
	return found
}
