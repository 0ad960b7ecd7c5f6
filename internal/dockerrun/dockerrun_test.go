package dockerrun

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, row := range []struct{ line, flags, image, args, sources string }{
		{"alpine", "", "alpine", "", ""},
		{"--rm -it alpine sh -c ls", "--rm -i -t", "alpine", "sh -c ls", ""},
		{"-ditu 7 alpine", "-d -i -t -u 7", "alpine", "", ""},
		{"-eA=b -e=C=d -e E=--privileged alpine --privileged", "-e A=b -e C=d -e E=--privileged", "alpine", "--privileged", ""},
		{"--name web --label=a=b -- alpine x", "--name web --label=a=b", "alpine", "x", ""},
		{"--read-only --privileged=false --cap-add CHOWN alpine", "--read-only --cap-add CHOWN", "alpine", "", ""},
		{"--security-opt no-new-privileges --security-opt seccomp=/etc/p.json alpine", "--security-opt no-new-privileges --security-opt seccomp=/etc/p.json", "alpine", "", ""},
		{"-v /src:/work:ro -v cache:/c -v/x:/y --mount type=bind,src=/a,dst=/b alpine", "-v /src:/work:ro -v cache:/c -v /x:/y --mount type=bind,src=/a,dst=/b", "alpine", "", "/src /x /a"},
		{"--mount TYPE=Bind,Source=/run,DST=/b --mount type=BIND,SRC=/a,dst=/b alpine", "--mount TYPE=Bind,Source=/run,DST=/b --mount type=BIND,SRC=/a,dst=/b", "alpine", "", "/run /a"},
		{"-v ./src:/work alpine", "-v ./src:/work", "alpine", "", "./src"},
		{"--entrypoint /x --pull always --user=7 alpine y", "--user=7", "alpine", "y", ""},
	} {
		c, err := Parse(strings.Fields(row.line))
		if err != nil {
			t.Errorf("%s: %v", row.line, err)
			continue
		}
		if strings.Join(c.Flags, " ") != row.flags || c.Image != row.image || strings.Join(c.Args, " ") != row.args || strings.Join(c.Sources, " ") != row.sources {
			t.Errorf("%s: %+v", row.line, c)
		}
	}
	c, _ := Parse(strings.Fields("--entrypoint= -u root --health-cmd x --read-only alpine"))
	if c == nil || !c.HasEntrypoint || c.Entrypoint != "" || c.User != "root" || !c.Health || !c.ReadOnly {
		t.Errorf("%+v", c)
	}
}

// TestWaysOutAreRefused tries each in all the ways in which it can be written.
func TestWaysOutAreRefused(t *testing.T) {
	for _, line := range []string{
		"--privileged", "--privileged=true", "--network host", "--network=none", "--net bridge", "--network-alias a", "--ip 1.2.3.4", "--link a", "--mac-address x",
		"-p 80", "-p80:80", "--publish=80", "-P", "--publish-all", "-itP", "--expose 1",
		"--cap-add ALL", "--cap-add=all", "--cap-add NET_ADMIN", "--cap-add CAP_NET_ADMIN", "--cap-add cap_sys_admin", "--cap-add SYS_PTRACE", "--cap-add SYS_MODULE",
		"--pid host", "--pid container:x", "--ipc host", "--ipc container:x", "--uts host", "--userns host", "--cgroupns host", "--cgroupns=host",
		"--security-opt seccomp=unconfined", "--security-opt seccomp:unconfined", "--security-opt apparmor=unconfined", "--security-opt label=disable", "--security-opt label:disable",
		"--security-opt systempaths=unconfined", "--security-opt no-new-privileges=false",
		"--device /dev/kvm", "--device-cgroup-rule x", "--gpus all", "--volumes-from x", "--volume-driver x", "--cgroup-parent x", "--runtime x", "--sysctl net.a=b", "--dns 8.8.8.8",
		"--mount type=volume,src=x,dst=/y,volume-opt=device=/run", "--mount type=volume,src=x,dst=/y,VOLUME-OPT=device=/run", "--mount type=npipe,src=x,dst=/y", `--mount type=bind,"src=/run",dst=/y`,
		"--no-such-flag", "--no-such=flag", "-Z", "--use-api-socket",
	} {
		words := append(append([]string{"-it"}, strings.Fields(line)...), "alpine")
		c, err := Parse(words)
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Instead == "" {
			t.Errorf("%s: %v, %+v", line, err, c)
		}
	}
	lines := "type=bind,source=/run,target=/x\n,type=volume,source=v" // of which docker reads the first
	for _, words := range [][]string{{"--mount", lines, "alpine"}, {"--mount=" + lines, "alpine"}, nil, {"--rm"}, {"--name"}, {"-e"}, {"--"}, {"--", "-x"}, {""}} {
		if c, err := Parse(words); err == nil {
			t.Errorf("%q: %+v", words, c)
		}
	}
}

// TestEveryFlagIsOfOneKind keeps a refusal from being undone by another list.
func TestEveryFlagIsOfOneKind(t *testing.T) {
	for name := range judged() {
		if switches()[name] || harmless()[name] {
			t.Errorf("%s is judged, and harmless", name)
		}
	}
	if slices.Contains(leaving, "CHOWN") {
		t.Error("CHOWN leaves nothing")
	}
}
