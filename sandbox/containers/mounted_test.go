package containers

import (
	"fmt"
	"slices"
	"testing"

	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/internal/mounttable"
)

// The tables are those of a Debian with the engine of the distribution, shortened.
const hostTable = `22 28 0:21 / /sys rw,nosuid - sysfs sysfs rw
23 28 0:22 / /proc rw,nosuid - proc proc rw
24 28 0:5 / /dev rw,nosuid - devtmpfs udev rw
26 28 0:24 / /run rw,nosuid - tmpfs tmpfs rw
28 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
31 22 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw
60 28 254:2 /@home /home rw,relatime - btrfs /dev/vda2 rw
61 28 254:1 /tmp/systemd-private-1/tmp /tmp rw,relatime - ext4 /dev/vda1 rw
90 28 0:50 / /var/lib/docker/overlay2/x/merged rw,relatime - overlay overlay rw
91 28 0:51 / /var/lib/docker/containers/x/mounts/shm rw - tmpfs shm rw
`

const ownTable = `200 90 0:50 / / rw,relatime - overlay overlay rw
201 200 0:60 / /proc rw,nosuid - proc proc rw
202 200 0:61 / /dev rw,nosuid - tmpfs tmpfs rw
203 202 0:51 / /dev/shm rw,nosuid - tmpfs shm rw
204 200 0:62 / /sys ro,nosuid - sysfs sysfs ro
205 204 0:27 /docker/x /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw
206 200 254:1 /var/lib/docker/containers/x/hosts /etc/hosts rw,relatime - ext4 /dev/vda1 rw
207 201 0:61 /null /proc/kcore rw,nosuid - tmpfs tmpfs rw
208 202 0:5 /zero /dev/zero rw,nosuid - devtmpfs udev rw
209 201 0:5 /null /proc/keys rw,nosuid - devtmpfs udev rw
`

// TestMaskedPaths has the table of a container of Podman, and that of one with --security-opt unmask=ALL.
func TestMaskedPaths(t *testing.T) {
	const proc, rest = "1 200 0:60 / /proc rw - proc proc rw\n2 200 0:62 / /sys ro - sysfs sysfs ro\n", `3 1 0:60 /bus /proc/bus ro - proc proc rw
4 1 0:60 /sys /proc/sys ro - proc proc rw
5 1 0:61 /null /proc/keys rw - tmpfs tmpfs rw
6 2 0:63 / /sys/firmware ro - tmpfs tmpfs ro
`
	hidden, readOnly := masked(mounttable.Parse(proc + rest))
	for _, path := range []any{"/proc/keys", "/sys/firmware"} {
		if !slices.Contains(hidden, path) {
			t.Errorf("%s is not hidden: %v", path, hidden)
		}
	}
	if !slices.Contains(readOnly, any("/proc/bus")) || !slices.Contains(readOnly, any("/proc/sys")) {
		t.Errorf("read-only: %v", readOnly)
	}
	if hidden, readOnly = masked(mounttable.Parse(proc)); slices.Contains(hidden, any("/sys/firmware")) || slices.Contains(readOnly, any("/proc/sys")) {
		t.Errorf("unmasked: %v, %v", hidden, readOnly)
	}
}

// TestUnaskedMounts has the engine mount what links led to for a moment.
func TestUnaskedMounts(t *testing.T) {
	d := boundary.Description{"HostsPath": "/var/lib/docker/containers/x/hosts", "Mounts": []any{
		map[string]any{"Type": "bind", "Source": "/srv/p/data", "Destination": "/d", "RW": true},
		map[string]any{"Type": "bind", "Source": "/home/u/w/", "Destination": "/w", "RW": true},
		map[string]any{"Type": "bind", "Source": "/usr/bin", "Destination": "/b", "RW": false},
		map[string]any{"Type": "volume", "Source": "/var/lib/docker/volumes/v/_data", "Destination": "/v", "RW": true},
	}}
	for says, row := range map[string]struct{ line, want string }{
		"as it was asked for":               {"1 200 254:1 /srv/p/data /d rw - ext4 x rw", ""},
		"a folder of another disk":          {"1 200 254:2 /@home/u/w /w rw - btrfs x rw", ""},
		"a volume, and a part of it":        {"1 200 254:1 /var/lib/docker/volumes/v/_data/sub /v rw - ext4 x rw", ""},
		"a file that was replaced":          {"1 200 254:1 /srv/p/data//deleted /d rw - ext4 x rw", ""},
		"a folder of the host":              {"1 200 254:1 /etc /d rw - ext4 x rw", "/etc /d true"},
		"a folder that was to be read-only": {"1 200 254:1 /usr/bin /d rw - ext4 x rw", "/usr/bin /d true"},
		"as read-only as it was to be":      {"1 200 254:1 /usr/bin /b ro - ext4 x rw", ""},
		"among the control groups":          {"1 200 254:1 /etc /sys/fs/cgroup/x rw - ext4 x rw", "/etc /sys/fs/cgroup/x true"},
		"read-only":                         {"1 200 254:1 /etc /d ro - ext4 x rw", "/etc /d false"},
		"the host itself":                   {"1 200 254:1 / /d rw - ext4 x rw", "/ /d true"},
		"the engine's socket":               {"1 200 0:24 /docker.sock /d rw - tmpfs x rw", "/run/docker.sock /d true"},
		"all of /run":                       {"1 200 0:24 / /d rw - tmpfs x rw", "/run /d true"},
		"the host's processes":              {"1 200 0:22 / /d rw - proc x rw", "/proc /d true"},
		"a disk":                            {"1 200 0:5 /vda1 /d rw - devtmpfs x rw", "/dev/vda1 /d true"},
		"a name that only looks like":       {"1 200 254:1 /srv/p/data2 /d rw - ext4 x rw", "/srv/p/data2 /d true"},
		"the container's own files":         {"1 200 254:1 /var/lib/docker/containers/x /d rw - ext4 x rw", "/var/lib/docker/containers/x /d true"},
		"where another link led":            {"1 200 254:1 /var/run/x\\040y /var/lib/z rw - ext4 x rw", "/var/run/x y /var/lib/z true"},
		"of a disk that is not here":        {"1 200 9:9 /x /d rw - ext4 x rw", ""},
		"where this process has /tmp":       {"1 200 254:1 /tmp/systemd-private-1/tmp/s /d rw - ext4 x rw", "/tmp/systemd-private-1/tmp/s /d true /tmp/s /d true"},
		"in the place of its memory":        {"1 200 0:24 / /dev/shm rw - tmpfs x rw", ""},
	} {
		var got []string
		for _, one := range unasked(d, mounttable.Parse(ownTable+row.line), mounttable.Parse(hostTable), nil) {
			m := one.(map[string]any)
			got = append(got, fmt.Sprint(m["Source"], " ", m["Destination"], " ", m["RW"]))
		}
		var want []string
		if row.want != "" {
			want = []string{row.want}
		}
		if says == "where this process has /tmp" {
			want = []string{"/tmp/systemd-private-1/tmp/s /d true", "/tmp/s /d true"}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", says, got, want)
		}
	}
	d["Mounts"] = append(d["Mounts"].([]any), map[string]any{"Type": "bind", "Source": "/srv/p/shm", "Destination": "/dev/shm"})
	if got := unasked(d, mounttable.Parse("1 200 0:24 / /dev/shm rw - tmpfs x rw"), mounttable.Parse(hostTable), nil); len(got) != 1 {
		t.Errorf("a link where /dev/shm was asked for: %v", got)
	}
	door := boundary.Description{}
	if got := unasked(door, mounttable.Parse("1 200 0:24 /egressd/web /run/egressd ro - tmpfs x rw"), mounttable.Parse(hostTable), []string{"/run/egressd/web"}); len(got) != 0 {
		t.Errorf("egressd's own: %v", got)
	}
	const wsl = hostTable + "92 28 254:1 / /mnt/wslg/distro ro,relatime - ext4 x rw\n93 28 254:2 / /srv rw - btrfs y rw\n"
	for line, count := range map[string]int{
		"1 200 254:1 /srv/p/data /d rw - ext4 x rw": 0, "1 200 254:1 /var/lib/docker/containers/x/hosts /etc/hosts rw - ext4 x rw": 0, "1 200 254:1 /etc /d rw - ext4 x rw": 2,
		"1 200 254:2 /@home/u/w /w rw - btrfs x rw": 0, "1 200 254:2 /@home/u /w rw - btrfs x rw": 2,
	} {
		if got := unasked(d, mounttable.Parse(line), mounttable.Parse(wsl), nil); len(got) != count {
			t.Errorf("with a file system that is mounted twice, %s: %v", line, got)
		}
	}
}
