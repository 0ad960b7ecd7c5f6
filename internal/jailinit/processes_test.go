package jailinit

import "testing"

func TestWhereAProcMayBeMounted(t *testing.T) {
	const proc = "22 1 0:20 / /proc rw,nosuid shared:5 - proc proc rw\n"
	for says, row := range map[string]struct {
		table string
		may   bool
	}{
		"it is there":                   {proc, true},
		"a folder that is always empty": {proc + "23 22 0:21 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw\n", true},
		"a part is hidden":              {proc + "23 22 0:21 / /proc/acpi ro - tmpfs tmpfs ro\n", false},
		"a part is read-only":           {proc + "23 22 0:20 /sys /proc/sys ro - proc proc rw\n", false},
		"all of it is read-only":        {"22 1 0:20 / /proc ro - proc proc rw\n", false},
		"a part of it is there":         {"22 1 0:20 /sys /proc rw - proc proc rw\n", false},
		"another file system is there":  {proc + "23 1 0:21 / /proc rw - tmpfs tmpfs rw\n", false},
		"there is none":                 {"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n", false},
	} {
		if got := mayMountProc(readMounts(row.table)); got != row.may {
			t.Errorf("%s: %t", says, got)
		}
	}
}
