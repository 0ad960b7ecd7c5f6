package doctor

import "testing"

func TestHiddenProcesses(t *testing.T) {
	for mounts, want := range map[string]bool{
		"proc /proc proc rw,nosuid,relatime 0 0\n":                                           false,
		"proc /proc proc rw,relatime,hidepid=invisible 0 0\n":                                true,
		"proc /proc proc rw,hidepid=2,gid=4 0 0\n":                                           true,
		"proc /proc proc rw,hidepid=0 0 0\nx /y tmpfs rw 0 0\n":                              false,
		"proc /proc proc rw,hidepid=off 0 0\nproc /other proc rw,hidepid=2 0 0\n":            false,
		"proc /proc proc rw,hidepid=2 0 0\nproc /proc proc rw 0 0\n/dev/sda / ext4 rw 0 0\n": false,
		"": false,
	} {
		if got := hidesUsers(mounts); got != want {
			t.Errorf("%q: %v", mounts, got)
		}
	}
	if processFinding(false, "").Says == processFinding(true, "").Says {
		t.Error("a /proc that is partly hidden is as good as a whole one")
	}
}
