package boundary

import (
	"encoding/json"
	"flag"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/mounttable"
)

var update = flag.Bool("update", false, "write the page of the reference anew")

// TestPage keeps the page of the reference as the table is.
func TestPage(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "reference", "container-settings.md")
	if *update {
		if err := os.WriteFile(path, []byte(Page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != Page() {
		t.Errorf("%s is another one than the table makes (%v): go test ./integrations/boundary -update", path, err)
	}
}

// describe is a container without a network that has more in it.
func describe(t *testing.T, text string) Description {
	t.Helper()
	var d Description
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	config, _ := d["HostConfig"].(map[string]any)
	if config == nil {
		config = map[string]any{}
		d["HostConfig"] = config
	}
	if config["NetworkMode"] == nil {
		config["NetworkMode"] = "none"
	}
	return d
}

func TestJudge(t *testing.T) {
	home := t.TempDir()
	work := filepath.Join(home, "src", "project")
	for _, dir := range []string{work, filepath.Join(home, "src", "other", ".git", "hooks"), filepath.Join(home, "data"), filepath.Join(home, ".config", "systemd", "user"), filepath.Join(home, "policy")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(home, "data", "engine")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Symlink("data/engine", filepath.Join(home, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("src/other", filepath.Join(home, "usual")); err != nil {
		t.Fatal(err)
	}
	m := &Machine{
		Home: home, UID: 7, Workspace: work, Own: []string{filepath.Join(home, "policy")}, Doors: []string{"/run/egressd/web"},
		Programs: []string{filepath.Join(home, "tools", "sbin")},
		Volumes: map[string]Volume{
			"nfs": {Driver: "local", Options: map[string]string{"type": "nfs", "device": ":/x", "o": "addr=10.0.0.1"}}, "cloud": {Driver: "rexray"}, "theirs": {Unknown: true},
			"root": {Options: map[string]string{"type": "none", "device": "/", "o": "bind"}}, "mem": {Options: map[string]string{"type": "tmpfs", "device": "tmpfs", "o": "size=1m"}}, "disk": {Options: map[string]string{"type": "ext4", "device": "/dev/sda1"}},
			"shared":  {Options: map[string]string{"type": "none", "device": "/srv/x", "o": "bind,shared"}},
			"private": {Options: map[string]string{"type": "none", "device": "/srv/y", "o": "bind"}},
			"climbs":  {Options: map[string]string{"type": "none", "device": home + "/usual/../x", "o": "bind"}},
			"later":   {Options: map[string]string{"type": "none", "device": work + "/a/../b", "o": "bind"}},
			"near":    {Options: map[string]string{"type": "none", "device": work + "/../shared", "o": "bind"}},
			"odd":     {Options: map[string]string{"mountpoint": "/"}},
		},
		Mine: []string{"egressd-state"}, Images: []string{"egressd:latest", "sha256:11"}, Engines: []string{"/data/docker"},
	}
	for text, refused := range map[string]string{
		`{}`:                                                                      "",
		`{"HostConfig": {"Privileged": true}}`:                                    "HostConfig.Privileged",
		`{"HostConfig": {"Privileged": false}}`:                                   "",
		`{"HostConfig": {"OfTomorrow": 1}}`:                                       "HostConfig.OfTomorrow",
		`{"HostConfig": {"OfTomorrow": false}}`:                                   "",
		`{"Tomorrow": {"A": 1}}`:                                                  "Tomorrow",
		`{"HostConfig": {"NetworkMode": "host"}}`:                                 "HostConfig.NetworkMode host",
		`{"HostConfig": {"NetworkMode": ""}}`:                                     "HostConfig.NetworkMode default",
		`{"HostConfig": {"NetworkMode": "container:x"}}`:                          "HostConfig.NetworkMode container:x",
		`{"NetworkSettings": {"Networks": {"none": {"NetworkID": "1"}}}}`:         "",
		`{"NetworkSettings": {"Networks": {"none": {"LeadsOut": "1"}}}}`:          "NetworkSettings.Networks.LeadsOut",
		`{"NetworkSettings": {"Networks": {"other_default": {}}}}`:                "NetworkSettings.Networks other_default",
		`{"NetworkSettings": {"Networks": {"none": {"DriverOpts": {"a": "b"}}}}}`: "NetworkSettings.Networks.DriverOpts a",
		`{"HostConfig": {"CapAdd": ["CHOWN", "CAP_SYS_NICE", "net_admin"]}}`:      "",
		`{"HostConfig": {"VolumesFrom": ["x"]}}`:                                  "HostConfig.VolumesFrom x",
		`{"Id": "1", "HostConfig": {"VolumesFrom": ["x"]}, "Mounts": [{"Type": "bind", "Source": "/srv/x", "Destination": "/x", "RW": true}]}`:                                                                                                                                         "",
		`{"Id": "1", "HostConfig": {"VolumesFrom": ["x"]}, "Mounts": [{"Type": "bind", "Source": "/etc", "Destination": "/x"}]}`:                                                                                                                                                       "Mounts /etc",
		`{"Mounts": [{"Type": "bind", "Source": "/srv", "Destination": "/w", "RW": true}, {"Type": "bind", "Source": "/srv/a/b", "Destination": "/b"}]}`:                                                                                                                               "Mounts /srv/a/b",
		`{"Mounts": [{"Type": "bind", "Source": "/srv", "Destination": "/w", "RW": true}, {"Type": "bind", "Source": "/srv/a/b", "Destination": "/b"}, {"Type": "bind", "Source": "/srv/a/b", "Destination": "/w/a/b"}]}`:                                                              "Mounts /srv/a/b",
		`{"Mounts": [{"Type": "bind", "Source": "/srv", "Destination": "/w", "RW": true}, {"Type": "bind", "Source": "/srv/a/b", "Destination": "/b"}, {"Type": "bind", "Source": "/srv/a/b", "Destination": "/w/a/b"}, {"Type": "bind", "Source": "/srv/a", "Destination": "/w/a"}]}`: "",
		`{"Mounts": [{"Type": "bind", "Source": "/srv", "Destination": "/w", "RW": true}, {"Type": "bind", "Source": "/srv", "Destination": "/again", "RW": true}, {"Type": "bind", "Source": "/srv/a", "Destination": "/w/a"}]}`:                                                      "Mounts /srv/a",
		`{"HostConfig": {"CapAdd": ["SYS_PTRACE"]}}`:                                                                                                         "",
		`{"HostConfig": {"CapAdd": ["cap_sys_boot"]}}`:                                                                                                       "HostConfig.CapAdd SYS_BOOT",
		`{"HostConfig": {"CapAdd": ["MAC_ADMIN"]}}`:                                                                                                          "HostConfig.CapAdd MAC_ADMIN",
		`{"HostConfig": {"CapAdd": ["CHECKPOINT_RESTORE"]}}`:                                                                                                 "HostConfig.CapAdd CHECKPOINT_RESTORE",
		`{"HostConfig": {"CapAdd": ["ALL"]}}`:                                                                                                                "HostConfig.CapAdd ALL",
		`{"HostConfig": {"CapAdd": ["OF_TOMORROW"]}}`:                                                                                                        "HostConfig.CapAdd OF_TOMORROW",
		`{"HostConfig": {"DeviceRequests": [{"Driver": "nvidia", "Count": -1}]}}`:                                                                            "HostConfig.DeviceRequests Count Driver",
		`{"HostConfig": {"Devices": [{"PathOnHost": "/dev/kvm"}]}}`:                                                                                          "HostConfig.Devices PathOnHost",
		`{"HostConfig": {"DeviceCgroupRules": ["a *:* rwm"]}}`:                                                                                               "HostConfig.DeviceCgroupRules a *:* rwm",
		`{"HostConfig": {"Runtime": "kata"}}`:                                                                                                                "HostConfig.Runtime kata",
		`{"HostConfig": {"Runtime": "runc"}}`:                                                                                                                "",
		`{"HostConfig": {"CgroupParent": "/system.slice"}}`:                                                                                                  "HostConfig.CgroupParent /system.slice",
		`{"HostConfig": {"Sysctls": {"net.core.somaxconn": "9"}}}`:                                                                                           "",
		`{"HostConfig": {"Sysctls": {"net.ipv4.ip_forward": "1"}}}`:                                                                                          "HostConfig.Sysctls net.ipv4.ip_forward",
		`{"HostConfig": {"Annotations": {"run.oci.hooks.stdout": "/etc/x"}}}`:                                                                                "HostConfig.Annotations run.oci.hooks.stdout",
		`{"HostConfig": {"PidMode": "host"}}`:                                                                                                                "HostConfig.PidMode host",
		`{"HostConfig": {"IpcMode": "container:x"}}`:                                                                                                         "HostConfig.IpcMode container:x",
		`{"HostConfig": {"IpcMode": "private", "UTSMode": "", "CgroupnsMode": "private"}}`:                                                                   "",
		`{"HostConfig": {"UTSMode": "host"}}`:                                                                                                                "HostConfig.UTSMode host",
		`{"HostConfig": {"UsernsMode": "host"}}`:                                                                                                             "HostConfig.UsernsMode host",
		`{"Id": "1", "HostConfig": {"SecurityOpt": ["seccomp=builtin"]}}`:                                                                                    "",
		`{"Id": "1", "HostConfig": {"SecurityOpt": ["seccomp=default"]}}`:                                                                                    "HostConfig.SecurityOpt seccomp=default",
		`{"HostConfig": {"SecurityOpt": ["seccomp=builtin"]}}`:                                                                                               "HostConfig.SecurityOpt seccomp=builtin",
		`{"HostConfig": {"SecurityOpt": ["no-new-privileges:true", "label=level:s0:c1"]}}`:                                                                   "",
		`{"HostConfig": {"SecurityOpt": ["seccomp={}"]}}`:                                                                                                    "HostConfig.SecurityOpt seccomp={}",
		`{"HostConfig": {"SecurityOpt": ["apparmor:unconfined"]}}`:                                                                                           "HostConfig.SecurityOpt apparmor:unconfined",
		`{"HostConfig": {"SecurityOpt": ["label=type:spc_t"]}}`:                                                                                              "HostConfig.SecurityOpt label=type:spc_t",
		`{"HostConfig": {"SecurityOpt": ["no-new-privileges=false"]}}`:                                                                                       "HostConfig.SecurityOpt no-new-privileges=false",
		`{"HostConfig": {"MaskedPaths": []}}`:                                                                                                                "HostConfig.MaskedPaths /proc/kcore",
		`{"HostConfig": {"ReadonlyPaths": null}}`:                                                                                                            "HostConfig.ReadonlyPaths /proc/bus",
		`{"HostConfig": {"LogConfig": {"Type": "json-file", "Config": {"tag": "x"}}}}`:                                                                       "",
		`{"HostConfig": {"LogConfig": {"Type": "syslog"}}}`:                                                                                                  "HostConfig.LogConfig.Type syslog",
		`{"HostConfig": {"LogConfig": {"Type": "fluentd"}}}`:                                                                                                 "HostConfig.LogConfig.Type fluentd",
		`{"HostConfig": {"LogConfig": {"Config": {"max-size": "1m", "fluentd-address": "192.0.2.1:24224"}}}}`:                                                "HostConfig.LogConfig.Config fluentd-address",
		`{"HostConfig": {"Links": ["x:y"]}}`:                                                                                                                 "HostConfig.Links x:y",
		`{"HostConfig": {"PortBindings": {"80/tcp": [{"HostPort": "80"}]}, "Memory": 5, "Ulimits": [{"Name": "nofile"}]}}`:                                   "",
		`{"Config": {"Image": "egressd"}}`:                                                                                                                   "Config.Image egressd",
		`{"Config": {"Image": "docker.io/library/egressd:latest"}}`:                                                                                          "Config.Image docker.io/library/egressd:latest",
		`{"Image": "sha256:11"}`:                                                                                                                             "Image sha256:11",
		`{"Config": {"Image": "egressd:2", "Labels": {"a": "b"}}}`:                                                                                           "",
		`{"Config": {"Labels": {"egressd.policy": "/x"}}}`:                                                                                                   "Config.Labels egressd.policy",
		`{"Config": {"Labels": {"com.docker.compose.service": "egressd"}}}`:                                                                                  "Config.Labels com.docker.compose.service",
		`{"Mounts": [{"Type": "npipe", "Source": "x"}]}`:                                                                                                     "Mounts npipe ",
		`{"Mounts": [{"Type": "volume", "Name": "v", "RW": true}, {"Type": "tmpfs"}]}`:                                                                       "",
		`{"Mounts": [{"Type": "volume", "Name": "egressd-state"}]}`:                                                                                          "Mounts egressd-state",
		`{"Mounts": [{"Type": "volume", "Name": "nfs"}]}`:                                                                                                    "Mounts nfs nfs :/x",
		`{"Mounts": [{"Type": "volume", "Name": "cloud"}]}`:                                                                                                  "Mounts cloud rexray",
		`{"Mounts": [{"Type": "volume", "Name": "theirs"}]}`:                                                                                                 "Mounts theirs",
		`{"Mounts": [{"Type": "volume", "Name": "root"}]}`:                                                                                                   "Mounts root /",
		`{"Mounts": [{"Type": "volume", "Name": "mem"}]}`:                                                                                                    "",
		`{"Mounts": [{"Type": "volume", "Name": "disk"}]}`:                                                                                                   "Mounts disk ext4 /dev/sda1",
		`{"Mounts": [{"Type": "volume", "Name": "shared"}]}`:                                                                                                 "Mounts shared o shared",
		`{"Mounts": [{"Type": "volume", "Name": "shop_egressd-state"}]}`:                                                                                     "Mounts shop_egressd-state",
		`{"Mounts": [{"Type": "volume", "Name": "egressd-local-state"}]}`:                                                                                    "Mounts egressd-local-state",
		`{"Mounts": [{"Type": "volume", "Name": "odd"}]}`:                                                                                                    "Mounts odd mountpoint",
		`{"Mounts": [{"Type": "bind", "Source": "/run/egressd/web", "RW": false}]}`:                                                                          "",
		`{"Mounts": [{"Type": "bind", "Source": "/run/egressd/web", "RW": true}]}`:                                                                           "Mounts /run/egressd/web",
		`{"Mounts": [{"Type": "bind", "Source": "/run/egressd/api", "RW": true}]}`:                                                                           "Mounts /run/egressd/api",
		`{"Mounts": [{"Type": "bind", "Source": "WORK", "RW": true}]}`:                                                                                       "",
		`{"Mounts": [{"Type": "bind", "Source": "WORK", "RW": true, "Propagation": "rshared"}]}`:                                                             "Mounts WORK rshared",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/data/sub", "RW": true}]}`:                                                                              "",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/tools/sbin/of/a/tool", "RW": true}]}`:                                                                  "Mounts HOME/tools/sbin/of/a/tool",
		`{"Mounts": [{"Type": "bind", "Source": "/var/backups", "RW": false}]}`:                                                                              "Mounts /var/backups",
		`{"Mounts": [{"Type": "bind", "Source": "/data/docker"}]}`:                                                                                           "Mounts /data/docker",
		`{"Mounts": [{"Type": "bind", "Source": "/data/docker/volumes/app_egressd-state/_data"}]}`:                                                           "Mounts /data/docker/volumes/app_egressd-state/_data",
		`{"Mounts": [{"Type": "bind", "Source": "/data"}]}`:                                                                                                  "Mounts /data",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.local/share/docker/volumes"}]}`:                                                                       "Mounts HOME/.local/share/docker/volumes",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/data/engine"}]}`:                                                                                       "Mounts HOME/data/engine",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/link"}]}`:                                                                                              "Mounts HOME/link",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/policy"}]}`:                                                                                            "Mounts HOME/policy",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/policy/x"}]}`:                                                                                          "Mounts HOME/policy/x",
		`{"Mounts": [{"Type": "bind", "Source": "HOME", "RW": true}]}`:                                                                                       "Mounts HOME",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.ssh"}]}`:                                                                                              "Mounts HOME/.ssh",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.aws"}]}`:                                                                                              "Mounts HOME/.aws",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.aws/credentials"}]}`:                                                                                  "Mounts HOME/.aws/credentials",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.AWS"}]}`:                                                                                              "Mounts HOME/.AWS",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.kube/config"}]}`:                                                                                      "Mounts HOME/.kube/config",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.netrc"}]}`:                                                                                            "Mounts HOME/.netrc",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.docker/config.json"}]}`:                                                                               "Mounts HOME/.docker/config.json",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.docker"}]}`:                                                                                           "Mounts HOME/.docker",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.docker/cli-plugins"}]}`:                                                                               "",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.config"}]}`:                                                                                           "Mounts HOME/.config",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.config/gh/hosts.yml"}]}`:                                                                              "Mounts HOME/.config/gh/hosts.yml",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.config/nvim"}]}`:                                                                                      "",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.mozilla/firefox/x.default"}]}`:                                                                        "Mounts HOME/.mozilla/firefox/x.default",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.config/google-chrome"}]}`:                                                                             "Mounts HOME/.config/google-chrome",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.password-store"}]}`:                                                                                   "Mounts HOME/.password-store",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.local/share/keyrings"}]}`:                                                                             "Mounts HOME/.local/share/keyrings",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.local/share"}]}`:                                                                                      "Mounts HOME/.local/share",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.m2/repository"}]}`:                                                                                    "",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.m2/settings.xml"}]}`:                                                                                  "Mounts HOME/.m2/settings.xml",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.cargo/registry"}]}`:                                                                                   "",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.claude/.credentials.json"}]}`:                                                                         "Mounts HOME/.claude/.credentials.json",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.cache/huggingface"}]}`:                                                                                "Mounts HOME/.cache/huggingface",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.cache/pip"}]}`:                                                                                        "",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.npmrc"}]}`:                                                                                            "Mounts HOME/.npmrc",
		`{"Mounts": [{"Type": "bind", "Source": "HOME"}]}`:                                                                                                   "Mounts HOME",
		`{"Mounts": [{"Type": "bind", "Source": "/root"}]}`:                                                                                                  "Mounts /root",
		`{"Mounts": [{"Type": "bind", "Source": "/root/.aws"}]}`:                                                                                             "Mounts /root/.aws",
		`{"Mounts": [{"Type": "bind", "Source": "/root/work"}]}`:                                                                                             "",
		`{"Mounts": [{"Type": "bind", "Source": "/home/other/.kube"}]}`:                                                                                      "Mounts /home/other/.kube",
		`{"Mounts": [{"Type": "bind", "Source": "/home/other/work"}]}`:                                                                                       "",
		`{"Mounts": [{"Type": "bind", "Source": "/etc/shadow"}]}`:                                                                                            "Mounts /etc/shadow",
		`{"Mounts": [{"Type": "bind", "Source": "/etc"}]}`:                                                                                                   "Mounts /etc",
		`{"Mounts": [{"Type": "bind", "Source": "/etc/localtime"}]}`:                                                                                         "",
		`{"Mounts": [{"Type": "bind", "Source": "/etc/ssl/certs"}]}`:                                                                                         "",
		`{"Mounts": [{"Type": "bind", "Source": "/etc/ssl"}]}`:                                                                                               "Mounts /etc/ssl",
		`{"Mounts": [{"Type": "bind", "Source": "/mnt/c/Users/me/.ssh"}]}`:                                                                                   "Mounts /mnt/c/Users/me/.ssh",
		`{"Mounts": [{"Type": "bind", "Source": "/mnt/c/Users/me/AppData/Roaming"}]}`:                                                                        "Mounts /mnt/c/Users/me/AppData/Roaming",
		`{"Mounts": [{"Type": "bind", "Source": "/mnt/c/Users/me/src"}]}`:                                                                                    "",
		`{"Mounts": [{"Type": "bind", "Source": "/etc/timezone"}]}`:                                                                                          "",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.bashrc", "RW": true}]}`:                                                                               "Mounts HOME/.bashrc",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.gitconfig"}]}`:                                                                                        "",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.gitconfig", "RW": true}]}`:                                                                            "Mounts HOME/.gitconfig",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/.config/systemd/user", "RW": true}]}`:                                                                  "Mounts HOME/.config/systemd/user",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/go/pkg/mod", "RW": true}]}`:                                                                            "Mounts HOME/go/pkg/mod",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/Library/LaunchAgents", "RW": true}]}`:                                                                  "Mounts HOME/Library/LaunchAgents",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/tools", "RW": true}]}`:                                                                                 "Mounts HOME/tools",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/tools"}]}`:                                                                                             "",
		`{"Mounts": [{"Type": "bind", "Source": "/mnt/c/Users", "RW": true}]}`:                                                                               "Mounts /mnt/c/Users",
		`{"Mounts": [{"Type": "bind", "Source": "/mnt", "RW": true}]}`:                                                                                       "Mounts /mnt",
		`{"Mounts": [{"Type": "bind", "Source": "/mnt/data", "RW": true}, {"Type": "bind", "Source": "/mnt/c"}]}`:                                            "",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/bin", "RW": true}]}`:                                                                                   "Mounts HOME/bin",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/src/other", "RW": true}]}`:                                                                             "Mounts HOME/src/other",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/src/other"}]}`:                                                                                         "",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/src/other/.git/hooks", "RW": true}]}`:                                                                  "Mounts HOME/src/other/.git/hooks",
		`{"Mounts": [{"Type": "bind", "Source": "/etc", "RW": true}]}`:                                                                                       "Mounts /etc",
		`{"Mounts": [{"Type": "bind", "Source": "/ETC/cron.d", "RW": true}]}`:                                                                                "Mounts /ETC/cron.d",
		`{"Mounts": [{"Type": "bind", "Source": "/users/me/.zshrc", "RW": true}]}`:                                                                           "Mounts /users/me/.zshrc",
		`{"Mounts": [{"Type": "bind", "Source": "/efi", "RW": true}]}`:                                                                                       "Mounts /efi",
		`{"Mounts": [{"Type": "bind", "Source": "HOME/Bin", "RW": true}]}`:                                                                                   "Mounts HOME/Bin",
		`{"Mounts": [{"Type": "bind", "Source": "/etc/cron.d", "RW": true}]}`:                                                                                "Mounts /etc/cron.d",
		`{"Mounts": [{"Type": "bind", "Source": "/var/spool/cron", "RW": true}]}`:                                                                            "Mounts /var/spool/cron",
		`{"Mounts": [{"Type": "bind", "Source": "/usr/local/bin", "RW": true}]}`:                                                                             "Mounts /usr/local/bin",
		`{"Mounts": [{"Type": "bind", "Source": "/srv/data", "RW": true}]}`:                                                                                  "",
		`{"Mounts": [{"Type": "bind", "Source": "WORK", "Destination": "/w", "RW": true}, {"Type": "bind", "Source": "WORK/data", "Destination": "/d"}]}`:    "Mounts WORK/data",
		`{"Mounts": [{"Type": "bind", "Source": "WORK/a/b", "Destination": "/w/a/b"}, {"Type": "bind", "Source": "WORK", "Destination": "/w", "RW": true}]}`: "Mounts WORK/a/b",
		`{"Mounts": [{"Type": "bind", "Source": "WORK", "Destination": "/w", "RW": true}, {"Type": "bind", "Source": "WORK/link/x", "Destination": "/w/link/x"}]}`:   "Mounts WORK/link/x",
		`{"Mounts": [{"Type": "bind", "Source": "WORK", "Destination": "/w", "RW": true}, {"Type": "bind", "Source": "WORK/data", "Destination": "/w/data"}]}`:       "",
		`{"Mounts": [{"Type": "bind", "Source": "WORK", "Destination": "/w", "RW": true}, {"Type": "bind", "Source": "WORK", "Destination": "/again", "RW": true}]}`: "",
		`{"Mounts": [{"Type": "bind", "Source": "/srv", "Destination": "/w", "RW": true}, {"Type": "volume", "Name": "private", "Destination": "/d", "RW": true}]}`:  "Mounts /srv/y",
		`{"Mounts": [{"Type": "bind", "Source": "/srv/y/z", "Destination": "/z"}, {"Type": "volume", "Name": "private", "Destination": "/d", "RW": true}]}`:          "Mounts /srv/y/z",
		`{"Mounts": [{"Type": "bind", "Source": "WORK", "Destination": "/w", "RW": true}, {"Type": "bind", "Source": "WORK/.env"}]}`:                                 "",
		`{"Mounts": [{"Type": "bind", "Source": "WORK", "Destination": "/w"}, {"Type": "bind", "Source": "WORK/data", "Destination": "/d", "RW": true}]}`:            "",
		`{"Mounts": [{"Type": "bind", "Source": "/etc/ssl/certs", "Mode": "ro,Z"}]}`:                                                                                 "Mounts /etc/ssl/certs", `{"Mounts": [{"Type": "bind", "Source": "/srv/x", "Mode": "ro,z"}]}`: "",
		`{"Mounts": [{"Type": "volume", "Name": "climbs", "RW": true}]}`:                                                                        "Mounts climbs HOME/usual/../x",
		`{"Mounts": [{"Type": "volume", "Name": "later", "RW": true}]}`:                                                                         "Mounts later WORK/a/../b",
		`{"Mounts": [{"Type": "volume", "Name": "near", "RW": true}]}`:                                                                          "",
		`{"Mounts": [{"Type": "bind", "Source": "/proc/self/root"}]}`:                                                                           "Mounts /proc/self/root",
		`{"Mounts": [{"Type": "bind", "Source": "/"}]}`:                                                                                         "Mounts /",
		`{"HostConfig": {"Mounts": [{"Type": "volume", "VolumeOptions": {"DriverConfig": {"Options": {"type": "cifs", "device": "//a/b"}}}}]}}`: "HostConfig.Mounts.VolumeOptions.DriverConfig.Options cifs //a/b",
		`{"HostConfig": {"Mounts": [{"Type": "bind", "BindOptions": {"Propagation": "shared"}}]}}`:                                              "HostConfig.Mounts.BindOptions.Propagation shared",
	} {
		in := strings.NewReplacer("HOME", home, "WORK", work)
		d := describe(t, in.Replace(text))
		var got []string
		for _, b := range Judge(d, m) {
			got = append(got, b.As(""))
			if b.Why == "" || b.Instead == "" {
				t.Errorf("%s: %+v", text, b)
			}
		}
		if all := strings.Join(got, "; "); all != in.Replace(refused) {
			t.Errorf("%s: refused is %q", text, all)
		}
	}
}

// TestOtherNames has file systems that are mounted twice, as administrators, btrfs, ostree and WSL have them.
func TestOtherNames(t *testing.T) {
	const bound = "1 0 8:1 / / rw - ext4 a rw\n2 1 8:1 / /mnt/all rw - ext4 a rw\n3 1 8:1 /etc /srv/x/etc rw - ext4 a rw\n4 1 8:2 / /mnt/else rw - ext4 b rw\n"
	const btrfs = "1 0 0:30 /@ / rw - btrfs a rw\n2 1 0:30 /@home /home rw - btrfs a rw\n3 1 0:30 / /mnt/pool rw - btrfs a rw\n"
	const disk = "1 0 8:1 / / rw - ext4 a rw\n2 1 9:1 / /data rw - ext4 b rw\n3 1 9:1 /home /home rw - ext4 b rw\n"
	const ostree = "1 0 0:40 / / rw - overlay a rw\n2 1 8:4 / /sysroot rw - xfs b rw\n3 1 8:4 /ostree/var /var rw - xfs b rw\n4 1 8:4 /ostree/1/etc /etc rw - xfs b rw\n"
	const wsl = "1 0 8:32 / / rw - ext4 a rw\n2 1 8:32 / /mnt/wslg/distro ro - ext4 a rw\n"
	const inside = "1 0 0:40 / / rw - overlay a rw\n2 1 8:1 /var/lib/vm/work /ws rw - ext4 a rw\n3 1 8:1 /var /var rw - ext4 a rw\n"
	for _, row := range []struct {
		table, path string
		refused     bool
	}{
		{bound, "/mnt/all", true}, {bound, "/mnt/all/etc/cron.d", true}, {bound, "/mnt/all/home/me/.ssh", true}, {bound, "/mnt/all/srv/data", false}, {bound, "/mnt/all/home/me/src", false},
		{bound, "/srv/x", true}, {bound, "/srv", true}, {bound, "/srv/x/etc/cron.d", true}, {bound, "/srv/y", false}, {bound, "/home/me/src", false}, {bound, "/mnt/else/etc", false},
		{btrfs, "/mnt/pool", true}, {btrfs, "/mnt/pool/@/etc", true}, {btrfs, "/mnt/pool/@home/me/.bashrc", true}, {btrfs, "/mnt/pool/@home/me/src", false}, {btrfs, "/home/me/src", false}, {btrfs, "/srv/x", false},
		{disk, "/data", true}, {disk, "/data/home/me/.bashrc", true}, {disk, "/data/home/me/src", false}, {disk, "/home/me/src", false}, {disk, "/data/x", false},
		{ostree, "/sysroot", true}, {ostree, "/sysroot/ostree/1/etc", true}, {ostree, "/sysroot/ostree/var/home/me/src", true}, {ostree, "/srv/x", false},
		{wsl, "/home/me/src", false}, {wsl, "/srv/x", false}, {inside, "/ws", false}, {inside, "/ws/x", false},
	} {
		m := &Machine{Home: "/home/me", Workspace: "/ws", Mounts: mounttable.Parse(row.table)}
		if why, _ := m.JudgePath(row.path, true); (why != "") != row.refused {
			t.Errorf("%s in\n%s%q", row.path, row.table, why)
		}
	}
}

// TestNeighboursReplaceNoSource has another sandbox write where this one mounts, or mount where this one writes.
func TestNeighboursReplaceNoSource(t *testing.T) {
	const running = `"State": {"Running": true}, `
	mount := func(source, destination string, writable bool) any {
		return map[string]any{"Type": "bind", "Source": source, "Destination": destination, "RW": writable}
	}
	for _, row := range []struct {
		says    string
		beside  []any
		mounts  string
		refused bool
	}{
		{"nobody beside it", nil, `{"Mounts": [{"Type": "bind", "Source": "/srv/w/data", "Destination": "/d"}]}`, false},
		{"another one writes around the source", []any{mount("/srv/w", "/w", true)}, `{"Mounts": [{"Type": "bind", "Source": "/srv/w/data", "Destination": "/d"}]}`, true},
		{"it runs, and the kernel has said what is mounted", []any{mount("/srv/w", "/w", true)}, `{` + running + `"Mounts": [{"Type": "bind", "Source": "/srv/w/data", "Destination": "/d"}]}`, false},
		{"another one only reads around it", []any{mount("/srv/w", "/w", false)}, `{"Mounts": [{"Type": "bind", "Source": "/srv/w/data", "Destination": "/d"}]}`, false},
		{"another one has it in its place", []any{mount("/srv/w", "/w", true), mount("/srv/w/data", "/w/data", true)}, `{"Mounts": [{"Type": "bind", "Source": "/srv/w/data", "Destination": "/d"}]}`, false},
		{"another one writes the same folder", []any{mount("/srv/w", "/w", true)}, `{"Mounts": [{"Type": "bind", "Source": "/srv/w", "Destination": "/d", "RW": true}]}`, false},
		{"this one writes around another's", []any{mount("/srv/w/data", "/d", false)}, `{"Mounts": [{"Type": "bind", "Source": "/srv/w", "Destination": "/w", "RW": true}]}`, true},
		{"the same while it runs", []any{mount("/srv/w/data", "/d", false)}, `{` + running + `"Mounts": [{"Type": "bind", "Source": "/srv/w", "Destination": "/w", "RW": true}]}`, true},
		{"it has another's in its place", []any{mount("/srv/w/data", "/d", false)}, `{"Mounts": [{"Type": "bind", "Source": "/srv/w", "Destination": "/w", "RW": true}, {"Type": "bind", "Source": "/srv/w/data", "Destination": "/w/data"}]}`, false},
		{"by a volume of a folder", []any{map[string]any{"Type": "volume", "Name": "all", "Destination": "/w", "RW": true}}, `{"Mounts": [{"Type": "bind", "Source": "/srv/w/data", "Destination": "/d"}]}`, true},
	} {
		t.Run(row.says, func(t *testing.T) {
			m := &Machine{Volumes: map[string]Volume{"all": {Options: map[string]string{"type": "none", "device": "/srv/w", "o": "bind"}}}}
			if row.beside != nil {
				m.Neighbours = []Neighbour{{Name: "other", Mounts: row.beside}}
			}
			problems := Judge(describe(t, row.mounts), m)
			if (len(problems) > 0) != row.refused {
				t.Errorf("refused is %v", problems)
			}
		})
	}
}

// TestNamespacesOfPeers has a container with the namespaces of one that was judged likewise, and of another one.
func TestNamespacesOfPeers(t *testing.T) {
	m := &Machine{Networks: []string{"net"}, Peers: []string{"abc"}}
	for _, field := range []string{"NetworkMode", "PidMode", "IpcMode", "UTSMode", "UsernsMode"} {
		for id, taken := range map[string]bool{"abc": field != "UTSMode" && field != "UsernsMode", "def": false} {
			host := map[string]any{"NetworkMode": "net", "CapDrop": []any{"ALL"}}
			host[field] = "container:" + id
			if problems := Judge(Description{"HostConfig": host}, m); (len(problems) == 0) != taken {
				t.Errorf("%s container:%s: %v", field, id, problems)
			}
		}
	}
}

// TestNothingKeepsItsPlaceInALooseEngine has an engine whose containers may make namespaces of users.
func TestNothingKeepsItsPlaceInALooseEngine(t *testing.T) {
	const held = `{"Mounts": [{"Type": "bind", "Source": "/srv/w", "Destination": "/w", "RW": true}, {"Type": "bind", "Source": "/srv/w/data", "Destination": "/w/data"}]}`
	for _, row := range []struct {
		says     string
		options  []string // as engines print them
		isPodman bool
		loose    bool
	}{
		{"Docker 20.10", []string{"name=seccomp,profile=default", "name=cgroupns"}, false, false},
		{"Docker 28", []string{"name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"}, false, false},
		{"Docker without a filter", []string{"name=seccomp,profile=unconfined"}, false, true},
		{"Docker with a filter of its own", []string{"name=seccomp,profile=/etc/docker/seccomp.json"}, false, true},
		{"a kernel without filters", []string{"name=cgroupns"}, false, true},
		{"Podman 4.3", []string{"name=seccomp,profile=default"}, true, true},
	} {
		m := &Machine{Loose: IsLoose(row.options, row.isPodman)}
		refused := Judge(describe(t, held), m)
		if m.Loose != row.loose || (len(refused) > 0) != row.loose {
			t.Errorf("%s: %v, %v", row.says, m.Loose, refused)
		}
	}
}

// TestJudgeASidecarsContainer is about a container in a network with egressd.
func TestJudgeASidecarsContainer(t *testing.T) {
	m := &Machine{Networks: []string{"app_egressd-web"}, Labelled: true}
	for text, refused := range map[string]string{
		`{"NetworkMode": "app_egressd-web", "CapDrop": ["NET_RAW"]}`:                          "",
		`{"NetworkMode": "app_egressd-web", "CapDrop": ["ALL"], "CapAdd": ["CHOWN"]}`:         "",
		`{"NetworkMode": "app_egressd-web"}`:                                                  "HostConfig.CapDrop",
		`{"NetworkMode": "app_egressd-web", "CapDrop": ["NET_RAW"], "CapAdd": ["NET_ADMIN"]}`: "HostConfig.CapAdd NET_ADMIN",
		`{"NetworkMode": "app_egressd-web", "CapDrop": ["ALL"], "CapAdd": ["CAP_NET_RAW"]}`:   "HostConfig.CapAdd NET_RAW",
		`{"NetworkMode": "bridge", "CapDrop": ["NET_RAW"]}`:                                   "HostConfig.NetworkMode bridge",
		`{"NetworkMode": "other_default", "CapDrop": ["NET_RAW"]}`:                            "HostConfig.NetworkMode other_default",
		`{"NetworkMode": "none", "CapDrop": ["NET_RAW"], "CapAdd": ["SYS_PTRACE"]}`:           "",
	} {
		d := describe(t, `{"HostConfig": `+text+`, "Config": {"Labels": {"com.docker.compose.service": "web"}}}`)
		var got []string
		for _, b := range Judge(d, m) {
			got = append(got, b.As(""))
		}
		if all := strings.Join(got, "; "); all != refused {
			t.Errorf("%s: refused is %q", text, all)
		}
	}
}
