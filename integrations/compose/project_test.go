package compose

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/integrations/boundary"
)

// TestFindProject asks for the project as Compose finds it, and whether a file of the project chose the name.
func TestFindProject(t *testing.T) {
	for _, row := range []struct {
		given, env, file string
		want             ProjectName
	}{
		{"", "", "services: {a: {image: a}}", ProjectName{"my-app", true}},
		{"", "", "name: victim\nservices: {a: {image: a}}", ProjectName{"victim", false}},
		{"", "", "name: my-app\nservices: {a: {image: a}}", ProjectName{"my-app", true}},
		{"", "COMPOSE_PROJECT_NAME='victim' # here\n", "name: other\nservices: {a: {image: a}}", ProjectName{"victim", false}},
		{"", "export COMPOSE_PROJECT_NAME = victim\r\n", "services: {a: {image: a}}", ProjectName{"victim", false}},
		{"given", "COMPOSE_PROJECT_NAME=victim\n", "services: {a: {image: a}}", ProjectName{"given", true}},
		{"", "", "name: Not A Name\nservices: {a: {image: a}}", ProjectName{}},
	} {
		dir := filepath.Join(t.TempDir(), "My-App.")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"compose.yaml": row.file, ".env": row.env} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		file, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		p, err := file.FindProject(row.given)
		if p != row.want || (err == nil) != (row.want.Name != "") {
			t.Errorf("%+v: %+v, %v", row, p, err)
		}
	}
}

// TestEnvIsPassedOnByName has lines by which Compose, or the engine's client, would do something else than the file says.
func TestEnvIsPassedOnByName(t *testing.T) {
	const file = "services: {a: {image: 'a:${TAG}', environment: [TOKEN, 'X=$X_Y', COMPOSE_FILE, LD_PRELOAD, DOCKER_HOST]}}"
	lines := envFile(strings.Split(`TAG=1
export TOKEN="s e"
X_Y = 2
TAG2=no
TOKEN_2=no
COMPOSE_PROFILES=dev
COMPOSE_FILE=/evil.yaml
COMPOSE_FILE: /evil.yaml
export COMPOSE_ENV_FILES=/home/u/.netrc
DOCKER_HOST=tcp://192.0.2.1:1
LD_PRELOAD=/w/evil.so
# TAG=3
 TAG=4
TAG: 5`, "\n"))
	passed := lines.passedOn(file, false)
	want := "TAG=1\nexport TOKEN=\"s e\"\nX_Y = 2\nCOMPOSE_PROFILES=dev\n"
	if _, got, _ := strings.Cut(passed, "\n"); got != want {
		t.Errorf("%q", got)
	}
}

// TestReadersOfEnvAgree has the Compose of this machine read lines of .env. It never sees a variable that the file does not name, and
// that a program of the host would read.
func TestReadersOfEnvAgree(t *testing.T) {
	for line, refused := range map[string]bool{
		"FOO=a\rDOCKER_X=tcp://192.0.2.1:1":                 true, // Compose 1 begins a line there
		"FOO='a' COMPOSE_X=/evil.yaml":                      true, // and Compose 2 here
		`FOO="a" DOCKER_X=tcp://192.0.2.1:1`:                true,
		"FOO='a":                                            true,
		`FOO="a\\" X="b"`:                                   true,
		"FOO=a\x0bCOMPOSE_X=1":                              true,
		"COMPOSE_PROFILES='dev' DOCKER_X=tcp://192.0.2.1:1": true,
		"FOO=a # DOCKER_X=b":                                false, "FOO='it is' # so": false, `FOO="a\nb"`: false, "FOO=it's \"so\"": false, "FOO=": false, "COMPOSE_PROFILES=dev,x": false, "BAR='a\rDOCKER_X=b": false, "FOO=é": false,
	} {
		dir := filepath.Join(t.TempDir(), "app")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		const text = "version: '2.4'\nservices: {web: {image: x, environment: {FOO: '${FOO-}', SEEN: '${DOCKER_X-}${COMPOSE_X-}'}}}\n"
		for name, text := range map[string]string{"compose.yaml": text, ".env": line + "\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		file, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		file.Call(ProjectName{Name: "app"}, nil, nil)
		if problems := file.Problems(composeMachine(), []string{"web"}); (len(problems) > 0) != refused {
			t.Errorf("%q: %q", line, problems)
		}
		resolved, err := file.Resolved(t.Context(), "app")
		if err != nil || resolved == nil {
			t.Fatalf("%q: %v; scripts/setup.sh installs a Compose", line, err)
		}
		seen := resolved.text.Services["web"]["environment"]
		if is := named(plain(&seen))["SEEN"]; is != "" {
			t.Errorf("%q: Compose sees %q", line, is)
		}
		if got := strings.Contains(resolved.Env(), line); got != (line == "COMPOSE_PROFILES=dev,x") { // by which up.sh starts services
			t.Errorf("%q: up.sh has %q", line, resolved.Env())
		}
	}
}

// TestVolumesOfTheProjectAlone has volumes and networks with names of their own, where the project is called otherwise.
func TestVolumesOfTheProjectAlone(t *testing.T) {
	for name, own := range map[string]bool{"app_data": true, "victim_data": false, "_data": false, "data": false, "free": true, "'${N:-free}'": true, "$N": false, "egressd-local-state": false, "app_egressd-state": false,
		"/etc": false, "..": false, "run/..": false, strings.Repeat("0", 64): false} {
		file := composeFile(t, "name: victim\nservices: {web: {image: x, volumes: ['data:/d']}}\nvolumes: {data: {name: "+name+"}}\n")
		file.Call(ProjectName{Name: "app"}, func(kind, name string) bool {
			return kind == "volume" && name != "victim_data" && name != "_data" && name != "data" && name != "app_egressd-state"
		}, nil)
		problems := file.Problems(&boundary.Machine{Home: "/home/u"}, []string{"web"})
		if (len(problems) == 0) != own {
			t.Errorf("%s: %q", name, problems)
		}
	}
}

// TestSecretsOfTheEnvironment names variables that services get of the user's own environment.
func TestSecretsOfTheEnvironment(t *testing.T) {
	file := composeFile(t, "services: {web: {image: x, environment: [GITHUB_TOKEN, 'K=${OPENAI_API_KEY:-}', LANG]}}\n")
	got := file.Secrets([]string{"GITHUB_TOKEN=1", "OPENAI_API_KEY=2", "LANG=C", "AWS_SECRET_ACCESS_KEY=3", "TOKEN=4"}, nil)
	if strings.Join(got, " ") != "GITHUB_TOKEN OPENAI_API_KEY" {
		t.Errorf("%q", got)
	}
}

// TestVariables has the values that Compose puts in. What two readers of .env may read differently is not known.
func TestVariables(t *testing.T) {
	j := composeJudge{
		environ: func(name string) (string, bool) {
			value, is := map[string]string{"HOME": "/h", "EMPTY": "", "BOTH": "shell", "ODD": "a$b"}[name]
			return value, is
		},
		env: envFile{"DIR=/srv/x", "BOTH=file", "QUOTED='q'", "DIR2 = y ", "COMPOSE_X=1", "NOTED=a # b"},
	}
	for text, want := range map[string]string{
		"/a": "/a", "$HOME/a": "/h/a", "${HOME}x": "/hx", "${BOTH}": "shell", "${DIR}/${DIR2}": "/srv/x/y", "${NONE:-/d}": "/d", "${NONE-/d}": "/d", "${NONE:-}": "", "${EMPTY:-/d}": "/d",
		"${EMPTY-/d}": "", "${EMPTY}": "", "${NONE:-${HOME}/d}": "/h/d", "${NONE:-$DIR}": "/srv/x", "${DIR:?say it}": "/srv/x", "${HOME:-/d}": "/h",
		"$NONE": "?", "${NONE:?say it}": "?", "${NONE:+x}": "?", "${DIR:+x}": "?", "${QUOTED}": "?", "${NOTED}": "?", "${COMPOSE_X}": "?", "$$HOME": "?", "${HOME": "?", "${HOME%x}": "?", "a$": "?", "${ODD}": "?", "${NONE:-${ODD}}": "?",
	} {
		got, known := j.expanded(text)
		if !known {
			got = "?"
		}
		if got != want {
			t.Errorf("%s is %q", text, got)
		}
	}
}

// TestVolumesThatAreThere has the engine know volumes of the project from before.
func TestVolumesThatAreThere(t *testing.T) {
	for says, row := range map[string]struct {
		is      boundary.Volume
		refused bool
	}{
		"as the file has it":   {boundary.Volume{Driver: "local"}, false},
		"a folder of the host": {boundary.Volume{Driver: "local", Options: map[string]string{"type": "none", "o": "bind", "device": "/etc"}}, true},
		"another driver":       {boundary.Volume{Driver: "nfs"}, true},
		"of nobody's project":  {boundary.Volume{Driver: "local", Unknown: true}, true},
	} {
		file := composeFile(t, "services: {web: {image: x, volumes: ['data:/d', 'new:/n']}}\nvolumes: {data: {}, new: {}}\n")
		file.Call(ProjectName{Name: "app"}, nil, func(name string) (boundary.Volume, bool) { return row.is, name == "app_data" })
		problems := file.Problems(&boundary.Machine{Home: "/home/u"}, []string{"web"})
		if (len(problems) > 0) != row.refused {
			t.Errorf("%s: %q", says, problems)
		}
	}
}

// TestAVolumeUnderItsOwnName has the engine know a volume under the name that the file gives it, with options from an earlier file.
func TestAVolumeUnderItsOwnName(t *testing.T) {
	for device, refused := range map[string]bool{"/etc": true, "/srv/data": false} {
		file := composeFile(t, "services: {web: {image: x, volumes: ['data:/d']}}\nvolumes: {data: {name: shared}}\n")
		file.Call(ProjectName{Name: "app"}, func(string, string) bool { return true }, func(name string) (boundary.Volume, bool) {
			return boundary.Volume{Driver: "local", Options: map[string]string{"type": "none", "o": "bind", "device": device}}, name == "shared"
		})
		if problems := file.Problems(&boundary.Machine{Home: "/home/u"}, []string{"web"}); (len(problems) > 0) != refused {
			t.Errorf("%s: %q", device, problems)
		}
	}
}

// TestAVolumeThatTheFileDescribesAnew has the engine know a plain volume, and the file make a folder of this machine of it. Compose
// offers to make the volume anew.
func TestAVolumeThatTheFileDescribesAnew(t *testing.T) {
	for device, refused := range map[string]bool{"/etc": true, "/srv/data": false} {
		file := composeFile(t, "services: {web: {image: x, volumes: ['data:/d']}}\nvolumes: {data: {driver_opts: {type: none, o: bind, device: "+device+"}}}\n")
		file.Call(ProjectName{Name: "app"}, nil, func(name string) (boundary.Volume, bool) { return boundary.Volume{Driver: "local"}, name == "app_data" })
		if problems := file.Problems(&boundary.Machine{Home: "/home/u"}, []string{"web"}); (len(problems) > 0) != refused || refused && !strings.Contains(problems[0], device) {
			t.Errorf("%s: %q", device, problems)
		}
	}
}

// TestALooseEngineHoldsNothing has an engine that lets programs make namespaces, in which no mount keeps its place.
func TestALooseEngineHoldsNothing(t *testing.T) {
	for services, held := range map[string]bool{
		"{web: {image: x, volumes: ['.:/app']}, db: {image: x, volumes: ['./data:/d']}}":                     true,
		"{web: {image: x, volumes: ['.:/app', './data:/app/data']}, db: {image: x, volumes: ['./data:/d']}}": true,
		"{web: {image: x, volumes: ['./app:/app']}, db: {image: x, volumes: ['./data:/d']}}":                 false,
	} {
		file := composeFile(t, "services: "+services+"\n")
		dir := filepath.Dir(file.Path)
		for _, loose := range []bool{false, true} {
			m := &boundary.Machine{Home: "/home/u", Workspace: dir, Loose: loose}
			if problems := file.Problems(m, []string{"web", "db"}); (len(problems) > 0) != (loose && held) {
				t.Errorf("%s, loose %v: %q", services, loose, problems)
			}
			if guards := file.Service("web").guards; loose && len(guards) > 0 {
				t.Errorf("%s: %v", services, guards)
			}
		}
	}
}

// TestComposeOneReadsEnvFilesAgain has a service that can put a link in the place of a file which Compose 1 reads after egressd.
func TestComposeOneReadsEnvFilesAgain(t *testing.T) {
	for services, row := range map[string]struct {
		held    bool // in its place
		refused bool
	}{
		"{web: {image: x, volumes: ['.:/app']}, db: {image: x, env_file: [conf/db.env, {path: none.env, required: false}]}}": {true, false},
		"{web: {image: x, volumes: ['.:/app'], env_file: conf/db.env}}":                                                      {true, false},
		"{web: {image: x, volumes: ['.:/app']}, db: {image: x, env_file: link/db.env}}":                                      {false, true}, // behind a link
		"{web: {image: x, volumes: ['./other:/app']}, db: {image: x, env_file: conf/db.env}}":                                {false, false},
	} {
		for _, ofOne := range []bool{true, false} {
			file := composeFile(t, "services: "+services+"\n")
			dir := filepath.Dir(file.Path)
			for _, folder := range []string{"conf", "other"} {
				if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, "conf", "db.env"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("conf", filepath.Join(dir, "link")); err != nil {
				t.Fatal(err)
			}
			file.StartedByOne(ofOne)
			problems := file.Problems(&boundary.Machine{Home: "/home/u", Workspace: dir}, []string{"web", "db"})
			if (len(problems) > 0) != (row.refused && ofOne) {
				t.Errorf("%s, Compose 1 %v: %q", services, ofOne, problems)
			}
			if held := slices.Contains(destinations(file.Service("web").guards), "/app/conf/db.env"); held != (row.held && ofOne) {
				t.Errorf("%s, Compose 1 %v: %q", services, ofOne, file.Service("web").guards)
			}
		}
	}
}

// TestAServiceCalledContainer has Compose read volumes_from otherwise than it looks: container:NAME is any container of the engine,
// such as egressd's own.
func TestAServiceCalledContainer(t *testing.T) {
	for entry, refused := range map[string]bool{"container:app-egressd-1": true, "container:container": true, "container:ro": true, "container": false, "service:container": false, "web:ro": false} {
		file := composeFile(t, "services: {container: {image: x}, web: {image: x}, tool: {image: x, volumes_from: ['"+entry+"']}}\n")
		if problems := file.Problems(&boundary.Machine{Home: "/home/u"}, []string{"container", "web", "tool"}); (len(problems) > 0) != refused {
			t.Errorf("%s: %q", entry, problems)
		}
	}
}

// TestWhoHasANetworkOfAnotherSendsNoPacketsOfItsOwn has a service in the network of another one: it loses what that loses.
func TestWhoHasANetworkOfAnotherSendsNoPacketsOfItsOwn(t *testing.T) {
	file := composeFile(t, "services: {web: {image: x}, side: {image: x, network_mode: 'service:web'}, alone: {image: x, network_mode: none}}\n")
	if problems := file.Problems(&boundary.Machine{Home: "/home/u"}, []string{"web", "side", "alone"}); len(problems) > 0 {
		t.Fatalf("%q", problems)
	}
	o, _ := override(t, file, false, "web")
	for _, name := range []string{"web", "side", "alone"} {
		if !slices.Contains(o.Services[name].CapDrop, "NET_RAW") {
			t.Errorf("%s is %+v", name, o.Services[name])
		}
	}
	if len(o.Services["side"].Networks) > 0 {
		t.Errorf("side has %v besides the network of web", o.Services["side"].Networks)
	}
}

// TestBuildsTakeNoNamesOfOthers has images that the engine has already.
func TestBuildsTakeNoNamesOfOthers(t *testing.T) {
	for text, taken := range map[string]string{
		"{build: ., image: 'node:22'}": "node:22", "{image: 'node:22'}": "", "{build: ., image: mine}": "", "{build: {context: ., tags: ['mine', 'node:22']}}": "node:22",
		"{build: .}": "app-web", "{build: ., image: 'node:${V}'}": "",
	} {
		dir := tree(t, map[string]string{"compose.yaml": "services: {web: " + text + "}\n"})
		file, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		file.Call(ProjectName{Name: "app"}, func(kind, name string) bool { return kind != "image" || name == "mine" }, nil)
		got := strings.Join(file.Problems(&boundary.Machine{Workspace: dir}, []string{"web"}), "\n")
		if taken == "" && strings.Contains(got, "from elsewhere") || taken != "" && !strings.Contains(got, "an image called "+taken+", which the engine has from elsewhere") {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// TestWhatIsReadLaterIsNoLink has a service write where a build, or docker compose watch, reads while it runs.
func TestWhatIsReadLaterIsNoLink(t *testing.T) {
	const writer = ", writer: {image: x, volumes: ['.:/ws']}}"
	for services, row := range map[string]struct {
		refused bool
		guards  []string
	}{
		"{web: {build: ./app}" + writer:                                                                       {false, []string{"/ws/app"}},
		"{web: {build: {context: ., dockerfile: app/Dockerfile}}" + writer:                                    {false, nil},
		"{web: {build: {context: ., additional_contexts: {lib: ./lib}}}" + writer:                             {false, []string{"/ws/lib"}},
		"{web: {build: ./linked/app}" + writer:                                                                {true, nil},
		"{web: {build: ./linked/app}}":                                                                        {false, nil},
		"{web: {image: x, develop: {watch: [{path: ./app, action: sync, target: /a}]}}" + writer:              {true, nil},
		"{web: {image: x, develop: {watch: [{path: ., action: sync+restart, target: /a}]}}" + writer:          {true, nil},
		"{web: {build: ./app, develop: {watch: [{path: ./app, action: rebuild}]}}" + writer:                   {false, []string{"/ws/app"}},
		"{web: {image: x, develop: {watch: [{path: ./app, action: sync, target: /a}]}, volumes: ['.:/ws']}}":  {false, nil},
		"{web: {image: x, develop: {watch: [{path: ./app, action: sync, target: /a}]}, volumes: ['./d:/d']}}": {false, nil},
	} {
		file := composeFile(t, "services: "+services+"\n")
		dir := filepath.Dir(file.Path)
		for _, folder := range []string{"app", "lib", "real/app"} {
			if err := os.MkdirAll(filepath.Join(dir, folder), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("real", filepath.Join(dir, "linked")); err != nil {
			t.Fatal(err)
		}
		problems := file.Problems(&boundary.Machine{Home: "/home/u", Workspace: dir}, []string{"web", "writer"})
		if (len(problems) > 0) != row.refused {
			t.Errorf("%s: %q", services, problems)
		}
		if got := destinations(file.Service("writer").guards); !row.refused && !slices.Equal(got, row.guards) {
			t.Errorf("%s: held in their places are %q", services, got)
		}
	}
}

// TestServicesOfProfilesAreJudgedAsComposeReadsThem has a service that Compose starts by name alone, and whose image only Compose can tell.
func TestServicesOfProfilesAreJudgedAsComposeReadsThem(t *testing.T) {
	file := composeFile(t, "version: '2.4'\nservices: {web: {image: x}, other: {image: '${UNSET_1:-egressd}:latest', profiles: [tools]}}\n")
	if got := strings.Join(file.profiles(), " "); got != "--profile * --profile tools" {
		t.Errorf("Compose prints services of %s", got)
	}
	file.Call(ProjectName{Name: "app"}, nil, nil)
	m := composeMachine()
	if problems := file.Problems(m, []string{"web", "other"}); len(problems) > 0 {
		t.Fatalf("as it is written: %q", problems)
	}
	resolved, err := file.Resolved(t.Context(), "app")
	if err != nil || resolved == nil {
		t.Fatalf("%v; scripts/setup.sh installs a Compose", err)
	}
	if problems := strings.Join(resolved.Problems(m, []string{"web", "other"}), "\n"); !strings.Contains(problems, "other has image egressd") {
		t.Errorf("as Compose reads it: %q", problems)
	}
}

// TestNetworksOfOthersAddresses has networks of a project take addresses to which the host sends.
func TestNetworksOfOthersAddresses(t *testing.T) {
	for subnet, want := range map[string]bool{
		"172.27.0.0/16": true, "10.9.0.0/24": true, "192.168.7.0/24": false, "192.168.0.0/16": false, "192.168.7.128/25": false, "151.101.0.0/16": false, "0.0.0.0/0": false,
		"127.0.0.0/8": false, "169.254.169.0/24": false, "fd00::/64": true, "2001:db8::/64": false, "$N": false, "x": false,
	} {
		file := composeFile(t, "services: {web: {image: x, networks: [n]}}\nnetworks: {n: {ipam: {config: [{subnet: '"+subnet+"'}]}}}\n")
		file.Avoid([]netip.Prefix{netip.MustParsePrefix("192.168.7.0/24")})
		if problems := file.Problems(&boundary.Machine{Home: "/home/u"}, []string{"web"}); (len(problems) == 0) != want {
			t.Errorf("%s: %q", subnet, problems)
		}
	}
}
