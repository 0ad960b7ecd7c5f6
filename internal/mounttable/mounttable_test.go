package mounttable

import (
	"slices"
	"testing"
)

// TestParse has lines of the manual page, of a folder with a space, and of a table that ends early.
func TestParse(t *testing.T) {
	const table = `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
40 36 0:45 /a\040b//deleted /c\134d ro,nosuid - tmpfs none ro
41 36 0:45 /x`
	all := Parse(table)
	if len(all) != 2 {
		t.Fatalf("%+v", all)
	}
	if m := all[0]; m.ID != "36" || m.Device != "98:0" || m.Root != "/mnt1" || m.Point != "/mnt2" || m.Kind != "ext3" || m.ReadOnly() || !slices.Equal(m.Super, []string{"rw", "errors=continue"}) {
		t.Errorf("%+v", m)
	}
	if m := all[1]; m.Root != "/a b//deleted" || m.Point != `/c\d` || m.Kind != "tmpfs" || !m.ReadOnly() {
		t.Errorf("%+v", m)
	}
}
