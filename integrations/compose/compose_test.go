package compose

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/integrations/sidecar"
	"go.yaml.in/yaml/v3"
)

func composeFile(t *testing.T, text string) *File {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "compose.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// overridden is what Compose reads of an override file, as far as it is asked for here.
type overridden struct {
	Version  string
	Services map[string]struct {
		Networks map[string]struct {
			Address string `yaml:"ipv4_address"`
		}
		DNS         []string
		Environment map[string]string
		CapDrop     []string                     `yaml:"cap_drop"`
		DependsOn   map[string]map[string]string `yaml:"depends_on"`
	}
	Networks map[string]struct {
		Internal bool
		Options  map[string]string `yaml:"driver_opts"`
	}
}

func override(t *testing.T, file *File, together bool, names ...string) (overridden, integrations.Set) {
	t.Helper()
	c := Compose{File: file, Path: filepath.Join(filepath.Dir(file.Path), "compose.egressd.yaml"), Together: together,
		Sidecar: sidecar.Sidecar{Project: "app", Image: "egressd:latest", Folder: "/home/me/.config/egressd/compose/app"},
		Variables: func(proxy string) ([]integrations.Variable, error) {
			return []integrations.Variable{{Name: "HTTPS_PROXY", Value: "http://" + proxy}, {Name: "NO_PROXY", Value: ""}}, nil
		}}
	subnets, err := sidecar.Subnets(netip.MustParsePrefix("10.140.16.0/20"), len(names))
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		c.Sandboxes = append(c.Sandboxes, sidecar.SandboxNetwork{Name: name, Subnet: subnets[i]})
	}
	set, err := c.Compose()
	if err != nil {
		t.Fatal(err)
	}
	var o overridden
	if err := yaml.Unmarshal([]byte(set.Files[0].Text), &o); err != nil {
		t.Fatalf("%v:\n%s", err, set.Files[0].Text)
	}
	return o, set
}

const twoServices = "version: '3.8'\nservices:\n  web: {image: a, ports: ['80:80']}\n  files: {volumes: ['./x:/x:ro']}\n  worker: {image: b, volumes: ['.:/src', 'data:/data']}\n"

func TestComposeGivesEachServiceANetwork(t *testing.T) {
	o, set := override(t, composeFile(t, twoServices), false, "web", "worker")
	if o.Version != "3.8" {
		t.Errorf("version %q: docker-compose takes no two of them", o.Version)
	}
	for name, self := range map[string]string{"web": "10.140.16.2", "worker": "10.140.16.66"} {
		network := "egressd-" + name
		s := o.Services[name]
		if len(s.Networks) != 1 || o.Services["egressd"].Networks[network].Address != self || !slices.Equal(s.DNS, []string{self}) {
			t.Errorf("%s has the networks %v and asks %v", name, s.Networks, s.DNS)
		}
		if s.Environment["HTTPS_PROXY"] != "http://"+self+":3128" || s.DependsOn["egressd"]["condition"] != "service_healthy" || !slices.Contains(s.CapDrop, "NET_RAW") {
			t.Errorf("%s is %+v", name, s)
		}
		n := o.Networks[network]
		if bridge := n.Options[sidecar.OptionBridge]; !n.Internal || n.Options[sidecar.OptionInhibit] != "true" || n.Options[sidecar.OptionIsolated] != "isolated" || len(bridge) > 15 || !strings.HasPrefix(bridge, sidecar.BridgePrefix) {
			t.Errorf("the network of %s is %+v", name, n)
		}
		if !strings.Contains(set.Files[1].Text, "{name: "+name+", source: [") || !strings.Contains(set.Files[1].Text, self+":53") {
			t.Errorf("the policy has no %s:\n%s", name, set.Files[1].Text)
		}
	}
	if o.Networks["egressd-web"].Options[sidecar.OptionBridge] == o.Networks["egressd-worker"].Options[sidecar.OptionBridge] {
		t.Error("two networks are one interface")
	}
	if _, there := o.Networks["default"]; there || o.Networks[outside].Internal {
		t.Errorf("networks %v", o.Networks)
	}
	notes := strings.Join(set.Notes, "\n")
	for _, want := range []string{"ports of web are not published", "worker can write ", "COMPOSE_FILE=compose.yaml:compose.egressd.yaml"} {
		if !strings.Contains(notes, want) {
			t.Errorf("nothing says %q:\n%s", want, notes)
		}
	}
	if link := "worker can put a link in the place of " + filepath.Join(filepath.Dir(set.Files[0].Path), "x") + ","; !strings.Contains(notes, link) {
		t.Errorf("nothing says %q:\n%s", link, notes)
	}
	if strings.Contains(notes, "web can write") {
		t.Errorf("web mounts nothing:\n%s", notes)
	}
}

// An override file takes no network away: those that a service names have to lead nowhere.
func TestComposeClosesNetworksThatStay(t *testing.T) {
	file := composeFile(t, "services:\n  a: {networks: [back]}\n  b: {networks: {back: {}, front: {}}}\n  c: {}\nnetworks: {back: {}, front: {}}\n")
	o, set := override(t, file, false, "a")
	if !o.Networks["back"].Internal || o.Networks["back"].Options[sidecar.OptionInhibit] != "true" {
		t.Errorf("back is %+v", o.Networks["back"])
	}
	if _, there := o.Networks["front"]; there {
		t.Error("front is closed, and nobody who is held is in it")
	}
	if got := o.Services["a"].Environment["NO_PROXY"]; got != "b" {
		t.Errorf("a goes past the proxy for %q", got)
	}
	if notes := strings.Join(set.Notes, "\n"); !strings.Contains(notes, "b is not held, and in the network back") {
		t.Errorf("nothing says that a gets out through b:\n%s", notes)
	}
	o, _ = override(t, file, true, "a", "c")
	if _, there := o.Services["c"].Networks["default"]; !there || !o.Networks["default"].Internal {
		t.Errorf("together, c has %v and default is %+v", o.Services["c"].Networks, o.Networks["default"])
	}
}

// outsideCompose is what services refer to that shall not be held.
const outsideCompose = `
x-engine: &engine ["/var/run/docker.sock:/s"]
x-root: &root {privileged: true}
x-syslog: &syslog {driver: syslog}
networks: {theirs: {external: true}, named: {name: other_default}, lan: {driver: macvlan}, bridge0: {driver_opts: {com.docker.network.bridge.name: docker0}}, cloud: {ipam: {driver: dhcp}}, mine: {internal: true, ipam: {config: [{subnet: 10.9.0.0/24}]}}}
volumes: {run: {driver_opts: {type: none, o: bind, device: /run}}, over: {driver_opts: {type: overlay, o: "lowerdir=/srv:/run"}}, unknown: {driver_opts: {device: "$D"}}, data: ,
  plugin: {driver: rexray}, nfs: {driver: local, driver_opts: {type: nfs, o: "addr=192.0.2.1", device: ":/x"}}, kind: {driver_opts: {type: "${T:-none}"}}, theirs: {external: true}, taken: {name: other_egressd-state}, ram: {driver: local, driver_opts: {type: tmpfs, device: tmpfs}}}
configs: {engine: {file: /var/run/docker.sock}, text: {content: x}, far: {external: true}}
secrets: {variable: {environment: TOKEN_1}, engine: {file: /var/run/docker.sock}, text: {file: ./text}, key: {file: ~/.ssh/id_ed25519}, comma: {file: "./a,src=/root/.ssh/id"}, climbs: {file: /proc/self/cwd/../id}, dollar: {file: "/srv/$$x/../a"}}
`

func composeMachine() *boundary.Machine {
	return &boundary.Machine{Home: os.Getenv("HOME"), Own: []string{"/srv/policy", "/var/lib/egressd"}, Images: []string{"egressd:latest"}, Names: []string{"shop-web-1"}, Labels: []string{"team"}}
}

func TestComposeServicesThatNoNetworkHolds(t *testing.T) {
	for text, want := range map[string]string{
		"{network_mode: host}":                             "network_mode host",
		"{network_mode: bridge}":                           "network_mode bridge",
		"{network_mode: 'container:x'}":                    "network_mode container:x",
		"{network_mode: other_default}":                    "network_mode other_default",
		"{network_mode: 'service:other'}":                  "network_mode service:other",
		"{network_mode: '$MODE'}":                          "network_mode $MODE",
		"{privileged: true}":                               "privileged: ",
		"{privileged: '${P}'}":                             "privileged ${P}",
		"{pid: host}":                                      "pid host",
		"{userns_mode: host}":                              "userns_mode",
		"{cap_add: [CAP_SYS_ADMIN]}":                       "cap_add SYS_ADMIN",
		"{cap_add: [SYS_PTRACE]}":                          "",
		"{cap_add: [SYS_BOOT]}":                            "cap_add SYS_BOOT",
		"{cap_add: [net_raw]}":                             "cap_add NET_RAW",
		"{cap_add: [ALL]}":                                 "cap_add ALL",
		"{gpus: all}":                                      "gpus all",
		"{runtime: kata}":                                  "runtime kata",
		"{cgroup_parent: /x}":                              "cgroup_parent /x",
		"{sysctls: [net.ipv4.ip_forward=1]}":               "sysctls net.ipv4.ip_forward",
		"{sysctls: {net.ipv4.conf.all.route_localnet: 1}}": "sysctls net.ipv4.conf.all.route_localnet",
		"{annotations: {run.oci.handler: krun}}":           "annotations run.oci.handler",
		"{deploy: {resources: {reservations: {devices: [{capabilities: [gpu]}]}}}}": "deploy.resources.reservations.devices",
		"{deploy: {of_tomorrow: 1}}":                                     "deploy.of_tomorrow",
		"{volumes: ['/var/run/docker.sock:/d.sock']}":                    "docker.sock",
		"{volumes: [{type: bind, source: /run, target: /r}]}":            "volumes /run:",
		"{volumes: ['/:/host']}":                                         "volumes /:",
		"{volumes: ['/srv/policy:/p:ro']}":                               "volumes /srv/policy:",
		"{volumes: ['/srv:/p']}":                                         "volumes /srv:",
		"{volumes: ['/var/lib/egressd/log:/p:ro']}":                      "volumes /var/lib/egressd/log:",
		"{volumes: ['/etc:/e']}":                                         "volumes /etc:",
		"{volumes: ['/etc/cron.d:/e']}":                                  "volumes /etc/cron.d:",
		"{volumes: ['~/.ssh:/e:ro']}":                                    "/.ssh:",
		"{volumes: ['~/.bashrc:/e']}":                                    "/.bashrc:",
		"{volumes: ['~/.config/systemd/user:/e']}":                       "/.config/systemd/user:",
		"{volumes: ['~/.gitconfig:/e']}":                                 "/.gitconfig:",
		"{volumes: ['egressd-state:/e']}":                                "volumes egressd-state:",
		"{volumes: [{type: volume, source: egressd-state, target: /e}]}": "volumes egressd-state:",
		"{volumes: ['taken:/e']}":                                        "volumes taken:",
		"{volumes: ['theirs:/e']}":                                       "volumes theirs:",
		"{volumes: ['/etc/ssl/certs:/a:ro,Z']}":                          "volumes /etc/ssl/certs:",
		"{volumes: [{type: bind, source: /etc/ssl/certs, target: /a, read_only: true, bind: {selinux: z}}]}": "volumes /etc/ssl/certs:",
		"{volumes: ['./a:/a:ro,z']}":    "",
		"{volumes: ['./a:/a:rshared']}": "rshared",
		"{volumes: [{type: bind, source: ./a, target: /a, bind: {propagation: shared}}]}": "shared",
		"{volumes: [{type: bind, source: ./a, target: /a, of_tomorrow: 1}]}":              "volumes.of_tomorrow",
		"{extends: {service: base}}":                                                "extends",
		"{networks: [theirs]}":                                                      "external: it is made elsewhere",
		"{networks: [named]}":                                                       "name other_default",
		"{networks: [lan]}":                                                         "driver macvlan",
		"{networks: [bridge0]}":                                                     "driver_opts com.docker.network.bridge.name",
		"{networks: [cloud]}":                                                       "ipam.driver dhcp",
		"{networks: [egressd-web]}":                                                 "egressd's own",
		"{networks: {mine: {driver_opts: {a: b}}}}":                                 "networks.mine.driver_opts",
		"{links: [web, 'web:db']}":                                                  "",
		"{links: [db]}":                                                             "links db",
		"{links: ['${X}']}":                                                         "links ${X}",
		"{volumes_from: [web, 'web:ro']}":                                           "",
		"{volumes_from: [web, 'container:web']}":                                    "volumes_from",
		"{volumes_from: ['service:web']}":                                           "",
		"{container_name: /egressd-local}":                                          "container_name /egressd-local",
		"{container_name: /shop-web-1}":                                             "by that name you tell a sandbox",
		"{external_links: [other_db_1]}":                                            "external_links other_db_1",
		"{labels: {egressd.policy: /x}}":                                            "labels egressd.policy",
		"{labels: ['com.docker.compose.service=egressd']}":                          "labels com.docker.compose.service",
		"{labels: ['com.docker.compose.project=other']}":                            "labels com.docker.compose.project",
		"{labels: ['${L}=egressd']}":                                                "labels ${L}",
		"{label_file: ./l}":                                                         "label_file",
		"{container_name: egressd-local}":                                           "container_name egressd-local",
		"{image: egressd, command: x}":                                              "image egressd",
		"{image: 'egressd:latest', build: .}":                                       "in the place of egressd's own",
		"{build: {context: ., tags: [egressd]}}":                                    "in the place of egressd's own",
		"{image: '${I:-egressd}', build: .}":                                        "what its variables stand for",
		"{build: {context: ., tags: ['localhost/egressd']}}":                        "in the place of egressd's own",
		"{build: {context: ., tags: ['egressd:1.0']}}":                              "in the place of egressd's own",
		"{build: {context: ., tags: ['example.com/egressd:1.0', 'egressd-web:1']}}": "",
		"{build: {context: ., tags: ['docker.io/library/egressd:latest']}}":         "in the place of egressd's own",
		"{volumes: *engine}":                                                        "docker.sock",
		"{<<: *root}":                                                               "privileged",
		"{networks: {<<: {theirs: {}}}}":                                            "made elsewhere",
		`{networks: ["x:\n    internal: false\n  y"]}`:                              "none can be called that",
		"{volumes: ['${S:-/var/run/docker.sock}:/s']}":                              "volumes /var/run/docker.sock",
		"{volumes: ['$S']}":                                                         "what its variables stand for",
		"{volumes: ['~/.docker/run:/r']}":                                           "volumes /",
		"{volumes: ['/var:/v']}":                                                    "volumes /var:",
		"{volumes: ['/proc:/p:ro']}":                                                "volumes /proc:",
		"{volumes: [{type: '${T:-bind}', source: /run}]}":                           "volumes ${T:-bind}",
		"{volumes: [{type: bind, source: '$S'}]}":                                   "what its variables stand for",
		"{volumes: ['run:/r']}":                                                     "volumes run /run:",
		"{volumes: [{type: volume, source: over}]}":                                 "volumes over overlay",
		"{volumes: ['unknown:/r']}":                                                 "what its variables stand for",
		"{configs: [engine]}":                                                       "docker.sock",
		"{configs: [far]}":                                                          "configs.far.external",
		"{secrets: [{source: engine, target: x}]}":                                  "docker.sock",
		"{secrets: [key]}":                                                          "/.ssh/id_ed25519:",
		"{env_file: ~/.ssh/config}":                                                 "/.ssh/config:",
		"{develop: {watch: [{path: ~/.ssh, action: sync, target: /s}]}}":            "/.ssh:",
		"{use_api_socket: true}":                                                    "use_api_socket",
		"{provider: {type: x}}":                                                     "provider",
		"{models: [m]}":                                                             "models",
		"{ipc: host}":                                                               "ipc host",
		"{ipc: 'service:other'}":                                                    "service:other, which is not held",
		"{pid: 'service:other'}":                                                    "service:other, which is not held",
		"{uts: host}":                                                               "uts host",
		"{cgroup: host}":                                                            "cgroup host",
		"{userns_mode: '$U'}":                                                       "userns_mode $U",
		"{cap_add: ['${CAP}']}":                                                     "cap_add ${CAP}",
		"{devices: [/dev/mem]}":                                                     "devices",
		"{device_cgroup_rules: ['a *:* rwm']}":                                      "device_cgroup_rules",
		"{volumes_from: ['container:x']}":                                           "volumes_from",
		"{security_opt: ['seccomp:unconfined']}":                                    "seccomp:unconfined",
		"{security_opt: ['seccomp:default']}":                                       "seccomp:default",
		"{security_opt: [seccomp=./p.json]}":                                        "seccomp=./p.json",
		"{security_opt: [label=disable]}":                                           "label=disable",
		"{post_start: [{command: x, privileged: true}]}":                            "post_start",
		"{logging: {driver: fluentd}}":                                              "logging.driver fluentd",
		"{logging: {driver: gelf, options: {gelf-address: 'udp://192.0.2.1:1'}}}": "logging.driver gelf",
		"{logging: {driver: syslog}}":                                   "logging.driver syslog",
		"{logging: {driver: awslogs}}":                                  "logging.driver awslogs",
		"{logging: {driver: splunk}}":                                   "logging.driver splunk",
		"{logging: {driver: '${D:-local}'}}":                            "logging.driver ${D:-local}",
		"{logging: {<<: *syslog}}":                                      "logging.driver syslog",
		"{logging: syslog}":                                             "logging that cannot be read",
		"{volumes: ['plugin:/p']}":                                      "volumes plugin rexray",
		"{volumes: [{type: volume, source: nfs, target: /n}]}":          "volumes nfs nfs",
		"{volumes: ['kind:/k']}":                                        "volumes kind none",
		"{volumes: [{type: volume, source: '$V', target: /v}]}":         "what its variables stand for",
		"{secrets: ['$S']}":                                             "what its variables stand for",
		"{configs: [{source: '${S}', target: x}]}":                      "what its variables stand for",
		"{logging: {driver: journald}, volumes: ['ram:/r']}":            "",
		"{logging: {driver: json-file, options: {max-size: 1m}}}":       "",
		"{logging: {driver: local}}":                                    "",
		"{logging: {driver: none}}":                                     "",
		"{logging: {options: {max-size: 1m}}}":                          "",
		"{build: {context: ., privileged: true}}":                       "build.privileged true",
		"{volumes: ['~root/.ssh:/s:ro']}":                               "mounts ~root/.ssh",
		"{volumes_from: [egressd]}":                                     "volumes_from",
		"{network_mode: 'service:egressd'}":                             "network_mode service:egressd",
		"{pid: 'service:egressd'}":                                      "pid service:egressd",
		"{build: {context: ., args: ['TOKEN_1']}}":                      "build.args TOKEN_1 of your environment",
		"{build: {context: ., args: {TOKEN_1: }}}":                      "build.args TOKEN_1 of your environment",
		"{build: {context: ., args: {A: 'x${TOKEN_1}'}}}":               "build with TOKEN_1 of your environment",
		"{build: {context: 'https://${TOKEN_1:-a}@example.com/a.git'}}": "build with TOKEN_1 of your environment",
		"{image: 'registry.example/a:$TOKEN_1'}":                        "image with TOKEN_1 of your environment",
		"{build: {context: ., args: {TOKEN_1: mine, A: '$LANG'}}, environment: ['T=$TOKEN_1', TOKEN_1], command: 'a $TOKEN_1'}": "",
		"{build: {context: ., secrets: [variable]}}":                                               "build.secrets variable, of your environment",
		"{build: {context: ., secrets: [text]}}":                                                   "",
		"{build: {context: ~/src}}":                                                                "/src, outside of the project",
		"{build: {context: ., additional_contexts: ['x=/srv/data']}}":                              "is built of /srv/data",
		"{build: {privileged: '${P}'}}":                                                            "build.privileged ${P}",
		"{build: {entitlements: [network.host]}}":                                                  "build.entitlements network.host",
		"{build: {network: host}}":                                                                 "build.network host",
		"{build: {network: 'container:x'}}":                                                        "build.network container:x",
		"{build: {network: '$N'}}":                                                                 "build.network $N",
		"{build: {ssh: [default]}}":                                                                "build.ssh default",
		"{build: {ssh: {key: ~/.ssh/id}}}":                                                         "build.ssh key",
		"{build: {context: 'git@example.com:a.git'}}":                                              "your ssh agent",
		"{build: {context: 'ssh://git@example.com/a.git#x:y'}}":                                    "your ssh agent",
		"{build: 'git@example.com:a.git'}":                                                         "your ssh agent",
		"{build: {cache_to: ['type=local,dest=/etc/cron.d']}}":                                     "build.cache_to",
		"{build: {cache_from: ['type=local,src=/root']}}":                                          "build.cache_from",
		"{build: {context: ., cache_from: ['type=registry,ref=registry.example/a:cache', 'a/b']}}": "",
		"{build: {cache_from: ['type=registry,ref=a,src=/root']}}":                                 "build.cache_from",
		"{build: {context: '~'}}":                                                                  "volumes /",
		"{build: {additional_contexts: {a: /}}}":                                                   "volumes /:",
		"{build: {<<: *root}}":                                                                     "build.privileged true",
		"{build: {of_tomorrow: 1}}":                                                                "build.of_tomorrow",
		"{build: [.]}":                                                                             "build that cannot be read",
		"{build: .}":                                                                               "",
		"{build: {context: ., network: none, privileged: false, entitlements: [], ssh: , args: {A: b}, x-mine: 1}}": "",
		"{build: {dockerfile_inline: FROM a, network: default}, env_file: [a.env, {path: b.env}]}":                  "",
		"{volumes: ['${UNSET_1}/b:/b']}":                              "mounts ${UNSET_1}/b:/b: what its variables stand for is up to Compose; write the path",
		"{volumes: ['$UNSET_1/b:/b']}":                                "what its variables stand for",
		"{volumes: [{type: bind, source: '${UNSET_1}', target: /b}]}": "what its variables stand for",
		"{volumes: ['$HOME/b:/b']}":                                   "",
		"{of_tomorrow: yes}":                                          "of_tomorrow",
		"{pid: 'service:web', ipc: private, uts: , cgroup: private, devices: [], privileged: }":                "",
		"{security_opt: ['no-new-privileges:true'], x-mine: 1, pre_stop: [{command: x}]}":                      "",
		"{volumes: ['~/src:/s', '${HOME}/a:/a', {type: tmpfs, target: /t}], secrets: [text], configs: [text]}": "",
		"{network_mode: 'service:web'}":                                                                         "",
		"{network_mode: none}":                                                                                  "",
		"{volumes: ['.:/a', './data:/data'], restart: always}":                                                  "",
		"{volumes: ['.:/a', './link/x:/x:ro']}":                                                                 "/link/x: it lies in ",
		"{volumes: ['.:/a', '.:/$X', './data:/data']}":                                                          "what its variables stand for",
		"{volumes: ['.:/a', './data:/a/data', './web:/w:ro'], user: root}":                                      "",
		"{volumes: ['./a:/a', './a/data:/a/data']}":                                                             "",
		"{build: {context: ., additional_contexts: ['x=file://../../../../../../etc/ssh/../../srv/policy']}}":   "build.additional_contexts file://",
		"{build: {context: ., additional_contexts: {x: 'cwd://.ssh'}}}":                                         "build.additional_contexts cwd://.ssh",
		"{build: {context: ., additional_contexts: ['x=oci-layout://layout']}}":                                 "build.additional_contexts oci-layout://layout",
		"{build: {context: ., additional_contexts: {x: '%{ if true }cwd%{ endif }:/a'}}}":                       "build.additional_contexts %{ if true }",
		"{build: {context: 'cwd://.ssh'}}":                                                                      "build.context cwd://.ssh",
		"{build: 'cwd://.ssh'}":                                                                                 "build cwd://.ssh",
		"{build: {context: 'x://../.ssh'}}":                                                                     "build.context x://../.ssh",
		"{build: {context: '/srv/p/$$x/../../../etc/ssh'}}":                                                     "build.context /srv/p/$$x",
		"{build: {context: 'a/%{ if false }b/c%{ endif }/../..'}}":                                              "build.context a/%{ if false }b",
		"{build: {context: ., dockerfile: '$$x/../../../k'}}":                                                   "build.dockerfile $$x",
		"{build: {context: 'github.com/a/b', dockerfile: 'cwd:///root/.ssh/id'}}":                               "build.dockerfile cwd:///root/.ssh/id",
		"{build: {context: 'https://example.com/a.git', dockerfile: /root/.ssh/id}}":                            "volumes /root/.ssh/id",
		"{build: {context: 'https://example.com/a.git', dockerfile: sub/Dockerfile}}":                           "",
		"{build: {context: ., secrets: [comma]}}":                                                               "build.secrets comma: BuildKit",
		"{build: {context: ., secrets: [dollar]}}":                                                              "build.secrets dollar /srv/$$x",
		"{build: {context: ., secrets: [{source: text, target: 'a,src=/root/.ssh/id'}]}}":                       "build.secrets text: BuildKit",
		"{build: {context: ., secrets: [climbs]}}":                                                              "the path /proc/self/cwd/../id",
		"{build: {context: ., secrets: [{source: text, target: a}]}}":                                           "",
		"{build: {context: ., tags: ['%{ if true }egressd:latest%{ endif }']}}":                                 "what its variables stand for",
		"{build: {context: ., additional_contexts: {x: 'docker-image://a', y: 'https://example.com/a.git'}}}":   "",
		"{develop: {watch: [{path: ., action: sync+exec, target: /a, exec: {command: id, privileged: true}}]}}": "develop.watch.exec that is privileged",
		"{develop: {watch: [{path: ., action: sync+exec, target: /a, exec: {command: id, of_tomorrow: 1}}]}}":   "develop.watch.exec.of_tomorrow",
		"{develop: {watch: [{path: ., action: sync+exec, target: /a, exec: {command: id, user: root}}]}}":       "",
		"{logging: {options: {gelf-address: 'udp://192.0.2.1:12201'}}}":                                         "logging.options gelf-address",
		"{logging: {driver: json-file, options: {max-size: 1m, max-file: 3}}}":                                  "",
		"{container_name: '${NONE:-shop-web-1}'}":                                                               "container_name shop-web-1",
		"{labels: [team=web]}":      "labels team",
		"{cap_add: {SYS_ADMIN: 1}}": "cap_add SYS_ADMIN",
		"{privileged: false, cap_add: [CHOWN], volumes: ['v:/v', '/srv/data:/srv'], networks: {mine: {aliases: [a]}}, image: a, deploy: {resources: {limits: {cpus: 1}}}}": "",
	} {
		t.Setenv("TOKEN_1", "secret")
		file := composeFile(t, outsideCompose+"services:\n  web: {}\n  it: "+text+"\n")
		if err := os.Symlink("/srv", filepath.Join(filepath.Dir(file.Path), "link")); err != nil {
			t.Fatal(err)
		}
		m := composeMachine()
		m.Workspace = filepath.Dir(file.Path)
		got := strings.Join(file.Problems(m, []string{"web", "it"}), "; ")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// Parts of a file that are not a service's may change what egressd is, too.
func TestComposeFilesThatChangeEgressdsOwn(t *testing.T) {
	for text, want := range map[string]string{
		"services: {a: {}, egressd: {user: root}}\n":                                "egressd: a service of that name",
		"services: {a: {}, b: {networks: [egressd-a]}}\n":                           "b has the network egressd-a",
		"services: {a: {}}\nnetworks: {egressd-a: {name: other_default}}\n":         "egressd-a: a network or volume of that name",
		"services: {a: {}}\nnetworks: {egressd-out: {internal: true}}\n":            "egressd-out: a network or volume of that name",
		"services: {a: {}}\nvolumes: {egressd-state: {external: true}}\n":           "egressd-state: a network or volume of that name",
		"services: {a: {}, b: {build: ., image: egressd}}\n":                        "b builds an image called egressd",
		"services: {a: {}}\nnetworks: {default: {external: true}}\n":                "the file has the network default: external",
		"services: {a: {networks: [n]}}\nnetworks: {n: {enable_ipv6: true}}\n":      "a has the network n: enable_ipv6",
		"services: {a: {networks: [n]}}\nnetworks: {n: {enable_ipv6: false}}\n":     "",
		"services: {a: {}}\ninclude: [other.yaml]\n":                                "include is a part",
		"services: {a: {}}\nmodels: {m: {model: x}}\n":                              "models is a part",
		"services: {a: {}, b: {privileged: true}}\nx-mine: 1\n":                     "",
		"name: shop\nservices: {a: {networks: [n]}}\nnetworks: {n: {name: shop_n}}": "",
	} {
		file := composeFile(t, text)
		got := strings.Join(file.Problems(composeMachine(), []string{"a"}), "; ")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// TestEnvBehindALink has a project whose .env is a file of the user's, as git can check out.
func TestEnvBehindALink(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".netrc"), []byte("KEY=secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for target, refused := range map[string]bool{filepath.Join(home, ".netrc"): true, "other.env": false} {
		dir := t.TempDir()
		for name, text := range map[string]string{"compose.yaml": "services: {a: {environment: [KEY]}}", "other.env": "KEY=1"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(target, filepath.Join(dir, ".env")); err != nil {
			t.Fatal(err)
		}
		file, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := file.Problems(&boundary.Machine{Home: home, Workspace: dir}, []string{"a"}); len(got) > 0 != refused {
			t.Errorf("%s: %q", target, got)
		}
	}
}

// What the next start of Compose is made of is no service's to write without a word.
func TestComposeSaysWhoCanWriteWhatIsRead(t *testing.T) {
	for text, want := range map[string]string{
		"build: ., volumes: ['.:/src']":                                                                        " and DIR (it is built of it: RUN steps of its next build have the engine's network)",
		"build: {context: ./ctx}, volumes: ['./ctx:/src']":                                                     "it can write DIR/ctx (it is built",
		"build: ctx, volumes: ['./ctx/src:/src']":                                                              "it can write DIR/ctx/src (it is built",
		"build: link, volumes: ['./ctx:/src']":                                                                 "it can write DIR/link (it is built",
		"build: {context: ctx, dockerfile: ../other/D}, volumes: ['./other:/src']":                             "it can write DIR/other/D (it is built",
		"build: {context: 'https://example.com/a.git', additional_contexts: [b=ctx]}, volumes: ['./ctx:/src']": "it can write DIR/ctx (it is built",
		"build: {additional_contexts: {b: ./ctx}, context: other}, volumes: ['./ctx:/src']":                    "it can write DIR/ctx (it is built",
		"env_file: e/a.env, volumes: ['./e:/src']":                                                             "it can write DIR/e/a.env, which",
		"env_file: [x, {path: e/a.env}], volumes: ['./e:/src']":                                                "it can write DIR/e/a.env, which",
		"volumes: ['./.env:/e']":                                                                               "it can write DIR/.env, which",
		"build: '${CTX:-.}', volumes: ['./ctx:/src']":                                                          "it can write DIR/ctx (it is built of it",
		"build: ., volumes: ['.:/src:ro']":                                                                     "",
		"build: 'https://example.com/a.git', volumes: ['./ctx:/src']":                                          "",
		"build: ctx, env_file: a.env, volumes: ['./other:/src']":                                               "",
		"build: '$CTX'": "",
	} {
		file := composeFile(t, "services:\n  it: {"+text+"}\n")
		dir := filepath.Dir(file.Path)
		if err := errors.Join(os.Mkdir(filepath.Join(dir, "ctx"), 0o700), os.Symlink("ctx", filepath.Join(dir, "link"))); err != nil {
			t.Fatal(err)
		}
		_, set := override(t, file, false, "it")
		all := strings.ReplaceAll(strings.Join(set.Notes, "\n"), dir, "DIR")
		if notes := strings.Count(all, "\n"); !strings.Contains(all, want) || (want == "") != (notes == 2) {
			t.Errorf("%s: %s", text, all)
		}
	}
	_, set := override(t, composeFile(t, "services: {it: {volumes: ['./ctx:/c']}, other: {build: ctx}}\n"), false, "it")
	if all := strings.Join(set.Notes, "\n"); !strings.Contains(all, "(other is built of it") {
		t.Errorf("what another service is built of: %s", all)
	}
}

// What one service mounts, another one must not be able to make a link: the override file mounts it where it lies, or the
// file is refused.
func TestComposeServicesThatReplaceWhatOthersMount(t *testing.T) {
	for text, want := range map[string]struct{ problem, guards string }{
		"{volumes: ['.:/src']}, b: {volumes: ['./x:/x:ro']}":                                                        {"", "DIR/x:/src/x"},
		"{volumes: ['.:/src/']}, b: {volumes: ['./x/y:/x:ro']}":                                                     {"", "DIR/x:/src/x DIR/x/y:/src/x/y"},
		"{volumes: ['.:/src']}, b: {secrets: [s]}":                                                                  {"", "DIR/s:/src/s"},
		"{volumes: ['.:/src']}, b: {volumes: ['.:/src', './x:/src/x']}":                                             {"", "DIR/x:/src/x"},
		"{volumes: ['.:/src', './x:/src/x']}, b: {volumes: ['./x:/src/x']}":                                         {"", ""},
		"{volumes: ['.:/src', '.:/again']}, b: {volumes: ['./x:/x']}":                                               {"", "DIR/x:/src/x DIR/x:/again/x"},
		"{volumes: ['.:/src', 'v:/src/x']}, b: {volumes: ['./x:/x']}":                                               {"a can put a link in the place of DIR/x,", ""},
		"{volumes: ['.:/src']}, b: {volumes: ['./link/x:/x:ro']}":                                                   {"a can put a link in the place of DIR/link/x,", ""},
		"{volumes: ['d:/src']}, b: {volumes: ['./d/x:/x:ro']}":                                                      {"a can put a link in the place of DIR/d/x,", ""},
		"{volumes: ['.:/src']}, b: {volumes: ['.:/x'], env_file: ./e, build: ./b, develop: {watch: [{path: ./b}]}}": {"a can write DIR/b, which docker compose watch copies into b", ""},
		"{volumes: ['.:/src']}, b: {volumes: ['.:/x'], env_file: ./e, build: ./b}":                                  {"", "DIR/b:/src/b"},
		"{volumes: ['./a:/src']}, b: {volumes: ['./x:/x:ro'], secrets: [s]}":                                        {"", ""},
		"{volumes: ['.:/src:ro']}, b: {volumes: ['./x:/x']}":                                                        {"", ""},
		"{network_mode: 'service:b', volumes: ['.:/src']}, b: {volumes: ['./x:/x']}":                                {"", "DIR/x:/src/x"},
		"{volumes_from: [c]}, b: {volumes: ['./x:/x']}, c: {volumes: ['.:/c']}":                                     {"", "DIR/x:/c/x"},
	} {
		dir := t.TempDir()
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "compose.yaml"), []byte("services: {a: "+text+"}\nsecrets: {s: {file: ./s}}\nvolumes: {v: {}, d: {driver_opts: {type: none, o: bind, device: "+dir+"/d}}}\n"), 0o600), os.Symlink("elsewhere", filepath.Join(dir, "link"))); err != nil {
			t.Fatal(err)
		}
		file, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		m := composeMachine()
		m.Workspace = dir
		held := []string{"a", "b", "c"}
		got := strings.ReplaceAll(strings.Join(file.Problems(m, held), "; "), dir, "DIR")
		if (want.problem == "") != (got == "") || !strings.Contains(got, want.problem) {
			t.Errorf("%s: %q", text, got)
		}
		if want.problem != "" {
			continue
		}
		c := Compose{File: file, Path: filepath.Join(dir, "o.yaml"), Sidecar: sidecar.Sidecar{Sandboxes: []sidecar.SandboxNetwork{{Name: "b", Subnet: netip.MustParsePrefix("10.140.16.0/26")}}}}
		c.Variables = func(string) ([]integrations.Variable, error) { return nil, nil }
		set, err := c.Compose()
		if err != nil {
			t.Fatal(err)
		}
		var made struct {
			Services map[string]struct{ Volumes []string }
		}
		_, body, _ := strings.Cut(set.Files[0].Text, "\n  a:\n")
		body, _, _ = strings.Cut(body, "\nnetworks:")
		if err := yaml.Unmarshal([]byte("services:\n  a:\n"+body), &made); want.guards != "" && err != nil {
			t.Fatal(err)
		}
		if volumes := strings.ReplaceAll(strings.Join(made.Services["a"].Volumes, " "), dir, "DIR"); volumes != want.guards {
			t.Errorf("%s: the override file mounts %q", text, volumes)
		}
	}
}

func TestReadComposeRefuses(t *testing.T) {
	for says, text := range map[string]string{"no services": "volumes: {a: {}}\n", "yaml: ": "services: [", "already defined": "services: {a: {}, a: {}}\n",
		"the tag !!null": "services: {a: {volumes: !!null ['/:/host']}}\n", "the tag !!binary": "services: {a: {volumes: [!!binary Lzov]}}\n", "the tag !x": "services: {a: {privileged: !x true}}\n",
		"its anchors make too much": "x-0: &a [x, x, x, x, x, x, x, x, x, x]\nx-1: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]\nx-2: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]\nx-3: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c]\n" +
			"services: {a: {ports: [*d, *d, *d, *d, *d, *d, *d, *d, *d, *d]}}\n",
		"anchors make":      "x-0: &a [*a]\nservices: {a: {ports: *a}}\n",
		"a second document": "services: {a: {}}\n---\nservices: {a: {privileged: true}}\n"} {
		path := filepath.Join(t.TempDir(), "compose.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := Read(t.TempDir()); err == nil || !strings.Contains(err.Error(), "there is no compose.yaml") {
		t.Errorf("an empty folder: %v", err)
	}
}
