package egressd_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/egressd/egressd/"

// levels gives each package its level: that of the longest row that it is, or is below. A package
// imports packages of lower levels, and none of its own level.
var levels = map[string]int{
	"internal": 0, "internal/carry": 1, "record": 0, "record/count": 1,
	"credentials/tokens": 0, "credentials": 1, "policy": 1, "audit/internal/format": 1, "audit": 2, "audit/verify": 2, "certs": 1,
	"integrations": 1, "integrations/jsonc": 1, "integrations/hostfiles": 1, "integrations/sidecar": 2, "integrations/boundary": 2, "integrations/peers": 2,
	"integrations/claude": 2, "integrations/codex": 2, "integrations/github": 2, "integrations/k8s": 2, "integrations/systemd": 2, "integrations/bubblewrap": 2,
	"integrations/compose": 3, "integrations/docker": 3, "integrations/devcontainer": 3,
	"rego": 2, "sandbox": 2, "policy/file": 2, "egress/approvals": 2, "egress/names": 2, "egress/upstream": 2,
	"egress": 3, "rego/bundle": 3, "egress/egresstest": 4,
	"proxy/answer": 4, "proxy/exchange": 5, "proxy/inspect": 6, "proxy": 7, "dns": 4, "admin": 4, "logs": 4, "config": 4,
	"logs/export": 4, "logs/signals": 5, "config/configtest": 5,
	"logs/sink":        6,
	"daemon/authority": 6, "daemon/client": 6, "daemon/confine": 6, "daemon/policystatus": 6, "daemon/notify": 7,
	"config/edit": 5, "config/explain": 5, "logs/replay": 5, "logs/source": 5, "logs/story": 6, "logs/index": 5, "ui": 7,
	"sandbox/environ": 3, "sandbox/containers": 3, "daemon/hostpaths": 6, "daemon/doctor": 9, "daemon/runs": 7, "daemon/run": 9,
	"sandbox/foreign": 3, "sandbox/sshagent": 2, "sandbox/rules": 3, "sandbox/capture": 4, "sandbox/attach": 5, "sandbox/jail": 5, "sandbox/folder": 3, "sandbox/exits": 6,
	"daemon":      8,
	"cmd/egressd": 12,
	"docs":        0,
	"packaging":   10, "e2e": 10, "e2e/chromium": 11,

	"cmd/egressd/internal/cli": 7, "cmd/egressd/internal/clitest": 8,
	"cmd/egressd/internal/cmd":       11,
	"cmd/egressd/internal/cmd/start": 10, "cmd/egressd/internal/cmd/sandboxes": 10, "cmd/egressd/internal/cmd/daemon": 10, "cmd/egressd/internal/cmd/answers": 10,
	"cmd/egressd/internal/cmd/policy": 10, "cmd/egressd/internal/cmd/log": 10, "cmd/egressd/internal/cmd/other": 10,
}

// stairs are imports within one level, each for a reason.
var stairs = map[string]string{
	"internal/hint internal/printable":      "what hint writes, a sandbox may have chosen",
	"internal/hint internal/shell":          "a hint begins with what people type to run egressd",
	"internal/jailinit internal/netlink":    "the jail's network and packet filter",
	"internal/jailinit internal/mounttable": "what is mounted where",
	"internal/hostsockets internal/netlink": "which Unix sockets the kernel has",
	"credentials/tokens internal/fair":      "sandboxes take turns at a token service",
}

// owners says which one package imports each third-party module; what belongs to
// the command, any package of it may. Tests may import what they like.
var owners = map[string]string{
	"github.com/aws/aws-sdk-go-v2":         "credentials",
	"github.com/coreos/go-systemd/v22":     "daemon",
	"github.com/fsnotify/fsnotify":         "daemon",
	"github.com/hanwen/go-fuse/v2":         "sandbox/folder",
	"github.com/rogpeppe/go-internal/diff": "config/edit",
	"github.com/spf13/cobra":               "cmd/egressd",
	"github.com/spf13/pflag":               "cmd/egressd",
	"github.com/gaissmai/bart":             "policy",
	"github.com/go-json-experiment/json":   "internal/strictjson",
	"go.yaml.in/yaml/v3":                   "policy/file",
	"golang.org/x/mod/sumdb":               "audit/internal/format",
	"github.com/vektah/gqlparser/v2":       "internal/graphql",
	"github.com/golang-jwt/jwt/v5":         "credentials/tokens",
	"golang.org/x/oauth2":                  "credentials/tokens",
	"github.com/klauspost/compress":        "proxy/exchange",
	"golang.org/x/text/unicode/norm":       "internal/strictjson",
	"golang.org/x/net/http2":               "proxy/inspect",
	"golang.org/x/net/idna":                "policy",
	"golang.org/x/net/publicsuffix":        "policy",
	"github.com/miekg/dns":                 "dns",
	"github.com/pelletier/go-toml/v2":      "integrations/codex",
	"github.com/tailscale/hujson":          "integrations/jsonc",
	"github.com/open-policy-agent/opa":     "rego",
	"github.com/hashicorp/golang-lru/v2":   "dns",
	"github.com/things-go/go-socks5":       "proxy",
	"golang.org/x/sys/unix":                "sandbox",
	"oras.land/oras-go/v2":                 "rego/bundle",
	"github.com/opencontainers/image-spec": "rego/bundle",
	"go.opentelemetry.io/proto/otlp":       "logs/export",
	"google.golang.org/protobuf":           "logs/export",

	"golang.org/x/crypto/x509roots/fallback":   "packaging/image",
	"software.sslmate.com/src/go-pkcs12":       "certs",
	"github.com/santhosh-tekuri/jsonschema/v6": "e2e/world",
	"github.com/chromedp/chromedp":             "e2e/chromium",
}

// guests are packages that import a module of another's, each for a reason.
var guests = map[string]string{
	"dns golang.org/x/sys/unix":                                   "a packet filter for one socket",
	"dns golang.org/x/net/ipv4":                                   "the address that a datagram was sent to",
	"dns golang.org/x/net/ipv6":                                   "the same",
	"integrations/compose go.yaml.in/yaml/v3":                     "compose files are YAML, and no policies",
	"integrations/peers go.yaml.in/yaml/v3":                       "policies of others, which are YAML too",
	"integrations/peers github.com/pelletier/go-toml/v2":          "settings of Codex",
	"integrations/peers github.com/pelletier/go-toml/v2/unstable": "the places of these settings",
	"policy golang.org/x/text/unicode/norm":                       "names of members that servers take for each other",
	"rego go.yaml.in/yaml/v3":                                     "data files beside Rego are YAML, and no policies",
	"rego/bundle github.com/open-policy-agent/opa/v1/bundle":      "OPA's names and types of what a bundle holds",
	"rego/bundle github.com/open-policy-agent/opa/v1/util":        "reads data as OPA does",
	"audit golang.org/x/mod/sumdb/note":                           "signs the notes whose form audit/internal/format has",
	"audit/verify golang.org/x/mod/sumdb/note":                    "signatures of checkpoints",
	"audit/verify golang.org/x/mod/sumdb/tlog":                    "proofs",
	"e2e/world github.com/miekg/dns":                              "the name server of tests, and questions to egressd's",
	"e2e/world golang.org/x/net/http2":                            "clients that send frames as they like",
	"e2e/world golang.org/x/net/http2/hpack":                      "the same",
	"internal/confined golang.org/x/sys/unix":                     "numbers of system calls and capabilities",
	"sandbox/attach golang.org/x/sys/unix":                        "sockets of Linux that package syscall does not know",
	"sandbox/capture golang.org/x/sys/unix":                       "the same",
	"sandbox/foreign golang.org/x/sys/unix":                       "the same",
	"sandbox/folder golang.org/x/sys/unix":                        "files by descriptor",
	"sandbox/jail golang.org/x/sys/unix":                          "namespaces and pidfds",
	"sandbox/rules golang.org/x/sys/unix":                         "numbers of nftables",

	"internal/boottime golang.org/x/sys/unix": "a clock of several systems",
	"internal/carry golang.org/x/sys/unix":    "poll(2)",
	"proxy golang.org/x/sys/unix":             "the user at a Unix socket, on macOS",

	"internal/jailinit golang.org/x/sys/unix": "the part of a jail that runs inside of it",
	"internal/netlink golang.org/x/sys/unix":  "numbers of netlink, rtnetlink and nftables",
	"internal/pidfd golang.org/x/sys/unix":    "processes by descriptor",
}

// dialers are the names by which the standard library opens connections or
// resolves. Only egress may use them, and those who are listed for a reason.
var dialers = map[string][]string{
	"net":        {"Dial", "DialTimeout", "DialTCP", "DialUDP", "DialIP", "DialUnix", "Dialer", "Resolver", "DefaultResolver", "LookupHost", "LookupIP", "LookupAddr", "LookupCNAME", "LookupNetIP", "LookupTXT", "LookupMX", "LookupNS", "LookupSRV", "ResolveTCPAddr", "ResolveUDPAddr", "ResolveIPAddr"},
	"net/http":   {"Transport", "DefaultTransport", "DefaultClient", "Client", "Get", "Head", "Post", "PostForm"},
	"syscall":    {"Connect", "SYS_CONNECT"},
	"crypto/tls": {"Dial", "DialWithDialer", "Dialer"},
}

var mayDial = map[string]string{
	"egress":             "the gate",
	"dns":                "its configured upstreams",
	"credentials/tokens": "servers of tokens, and token services of registries, that the operator named",

	"rego/bundle":  "egressd's own policy, from servers that the operator named",
	"logs/sink":    "the operator's receivers of records and checkpoints, by name",
	"e2e/world":    "the clients in the sandbox",
	"internal/lab": "the far side of tests",

	"sandbox/containers": "the socket of the container engine",
	"sandbox/sshagent":   "the socket of the user's ssh agent",

	"internal/lab/engine/probe": "what a test tries from the inside of a container",

	"daemon/client": "the operator's own listener, as an operator",

	"daemon": "syscall.Connect to ask whether a unix socket is alive, see clearSocket",
}

// mayName are single names that one file may use all the same, each for a
// reason.
var mayName = map[string]string{
	"proxy/inspect/h2.go net/http.Transport": "says how much of a response HTTP/2 takes unread; what golang.org/x/net makes of it cannot dial",
}

// A source is one file of the project that is not a test.
type source struct {
	pkg  string // relative to the root
	path string
	file *ast.File
}

func sources(t *testing.T) (all []source) {
	t.Helper()
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || p == "build" || hasModule(p)):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.SkipObjectResolution)
		all = append(all, source{filepath.ToSlash(filepath.Dir(p)), p, file})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("found %d source files; the test runs in the wrong place", len(all))
	}
	return all
}

// hasModule reports whether a folder is a module of its own, such as bench.
func hasModule(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, "go.mod"))
	return err == nil
}

func (s source) imports() (paths []string) {
	for _, spec := range s.file.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

func TestLevels(t *testing.T) {
	for _, s := range sources(t) {
		for _, p := range s.imports() {
			own, ok := strings.CutPrefix(p, module)
			if ok && !mayImport(s.pkg, own) {
				t.Errorf("%s: %s may not import %s", s.path, s.pkg, own)
			}
		}
	}
}

func mayImport(from, to string) bool {
	return levelOf(to) < levelOf(from) || stairs[from+" "+to] != ""
}

// levelOf returns the level of a package; none may import one without a level.
func levelOf(pkg string) int {
	for p := pkg; p != "."; p = path.Dir(p) {
		if level, ok := levels[p]; ok {
			return level
		}
	}
	return math.MaxInt
}

func TestThirdPartyModulesHaveOneOwner(t *testing.T) {
	for _, s := range sources(t) {
		for _, p := range s.imports() {
			first, _, _ := strings.Cut(p, "/")
			if !strings.Contains(first, ".") || strings.HasPrefix(p, module) {
				continue
			}
			if owner := ownerOf(p); owner != s.pkg && !strings.HasPrefix(s.pkg, owner+"/internal/") && guests[s.pkg+" "+p] == "" {
				t.Errorf("%s imports %s, which belongs to %q", s.path, p, owner)
			}
		}
	}
}

// TestEachRowIsAboutAPackageThatIsThere fails on rows that outlived what they are about.
func TestEachRowIsAboutAPackageThatIsThere(t *testing.T) {
	all := sources(t)
	imported := func(pkg string, by func(pkg string) bool) bool {
		return slices.ContainsFunc(all, func(s source) bool {
			return by(s.pkg) && slices.ContainsFunc(s.imports(), func(p string) bool { return p == pkg || strings.HasPrefix(p, pkg+"/") })
		})
	}
	is := func(pkg string) bool {
		return slices.ContainsFunc(all, func(s source) bool { return s.pkg == pkg })
	}
	for m, owner := range owners {
		if !imported(m, func(pkg string) bool { return pkg == owner || strings.HasPrefix(pkg, owner+"/internal/") }) {
			t.Errorf("owners: %s does not import %s", owner, m)
		}
	}
	for guest := range guests {
		pkg, m, _ := strings.Cut(guest, " ")
		if !imported(m, func(p string) bool { return p == pkg }) {
			t.Errorf("guests: %s does not import %s", pkg, m)
		}
	}
	for file := range mayName {
		path, _, _ := strings.Cut(file, " ")
		if !slices.ContainsFunc(all, func(s source) bool { return filepath.ToSlash(s.path) == path }) {
			t.Errorf("mayName: there is no %s", path)
		}
	}
	for room := range levels {
		if !slices.ContainsFunc(all, func(s source) bool { return s.pkg == room || strings.HasPrefix(s.pkg, room+"/") }) {
			t.Errorf("levels: there is no package in %s", room)
		}
	}
	for pkg := range mayDial {
		if !is(pkg) {
			t.Errorf("mayDial: there is no package %s", pkg)
		}
	}
}

// TestTheArchitectureHasEachPackageOnce reads the table of packages in ARCHITECTURE.md.
func TestTheArchitectureHasEachPackageOnce(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]int{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 || strings.Trim(cells[1], " 0123456789") != "" { // not a row of a level
			continue
		}
		for name := range strings.SplitSeq(cells[2], ",") {
			if name = strings.Trim(name, " `"); strings.HasPrefix(name, "…/") {
				name = "cmd/egressd/internal/" + strings.TrimPrefix(name, "…/")
			}
			listed[name]++
		}
	}
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if seen[s.pkg] {
			continue
		}
		seen[s.pkg] = true
		aside := listed[s.pkg] == 0 && strings.Contains(string(text), "`"+s.pkg+"`") // in a sentence below the table
		if n := listed[s.pkg]; n != 1 && !aside {
			t.Errorf("ARCHITECTURE.md lists %s %d times", s.pkg, n)
		}
	}
	for name := range listed {
		if name != "package" && !strings.HasPrefix(name, "---") && !seen[name] {
			t.Errorf("ARCHITECTURE.md lists %s, which is not there", name)
		}
	}
}

func ownerOf(p string) string {
	for m, owner := range owners {
		if p == m || strings.HasPrefix(p, m+"/") {
			return owner
		}
	}
	return "nobody: name its owner in arch_test.go"
}

func TestOnlyTheGateDials(t *testing.T) {
	for _, s := range sources(t) {
		if mayDial[s.pkg] != "" {
			continue
		}
		names := localNames(s.file)
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok || mayName[filepath.ToSlash(s.path)+" "+names[x.Name]+"."+sel.Sel.Name] != "" {
				return true
			}
			if slices.Contains(dialers[names[x.Name]], sel.Sel.Name) {
				t.Errorf("%s uses %s.%s; only the gate dials and resolves", s.path, x.Name, sel.Sel.Name)
			}
			return true
		})
	}
}

// localNames maps the name by which a file knows a package to its path.
func localNames(f *ast.File) map[string]string {
	names := map[string]string{}
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		name := path.Base(strings.TrimSuffix(strings.TrimSuffix(p, "/v2"), "/v3"))
		name = strings.TrimPrefix(name, "go-")
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = p
	}
	return names
}

// TestNoThirdPartyTypeIsExported looks at the signatures of exported
// functions, methods and fields.
func TestNoThirdPartyTypeIsExported(t *testing.T) {
	for _, s := range sources(t) {
		if strings.HasPrefix(s.pkg, "cmd/") || s.pkg == "e2e/world" || s.pkg == "e2e/chromium" || s.pkg == "audit/internal/format" {
			continue // the compiler keeps the last one's importers below audit
		}
		names := localNames(s.file)
		for _, decl := range s.file.Decls {
			for _, exported := range exportedParts(decl) {
				reportThirdParty(t, s, names, exported)
			}
		}
	}
}

func exportedParts(decl ast.Decl) (parts []ast.Node) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && receiverExported(d) {
			parts = append(parts, d.Type)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			if ts, ok := spec.(*ast.TypeSpec); ok && ts.Name.IsExported() {
				parts = append(parts, exportedFields(ts.Type)...)
			}
		}
	}
	return parts
}

func receiverExported(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	kind := d.Recv.List[0].Type
	if star, ok := kind.(*ast.StarExpr); ok {
		kind = star.X
	}
	name, ok := kind.(*ast.Ident)
	return ok && name.IsExported()
}

func exportedFields(kind ast.Expr) (parts []ast.Node) {
	st, ok := kind.(*ast.StructType)
	if !ok {
		return []ast.Node{kind}
	}
	for _, field := range st.Fields.List {
		if len(field.Names) == 0 || slices.ContainsFunc(field.Names, (*ast.Ident).IsExported) {
			parts = append(parts, field.Type)
		}
	}
	return parts
}

func reportThirdParty(t *testing.T, s source, names map[string]string, part ast.Node) {
	t.Helper()
	ast.Inspect(part, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		p := names[x.Name]
		if first, _, _ := strings.Cut(p, "/"); strings.Contains(first, ".") && !strings.HasPrefix(p, module) {
			t.Errorf("%s exports %s.%s of %s", s.path, x.Name, sel.Sel.Name, p)
		}
		return true
	})
}

// TestTheArchitectureNamesFilesThatExist looks for each file in Go that ARCHITECTURE.md names.
func TestTheArchitectureNamesFilesThatExist(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	all := sources(t)
	for _, m := range regexp.MustCompile("`([A-Za-z0-9_/]+\\.go)`").FindAllStringSubmatch(string(text), -1) {
		name := m[1]
		if _, err := os.Stat(name); err == nil {
			continue
		}
		if strings.Contains(name, "/") || !slices.ContainsFunc(all, func(s source) bool { return filepath.Base(s.path) == name }) {
			t.Errorf("ARCHITECTURE.md names %s, which is not there", name)
		}
	}
}
