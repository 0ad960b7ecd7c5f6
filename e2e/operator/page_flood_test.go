package operator

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestThePageUnderAFlood has a sandbox ask for junk names until its budget of records is used up, and then twenty times for
// the host that it means. The page shows that host, with all twenty.
func TestThePageUnderAFlood(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [allowed.test]\n"))
	denied := func(to string) {
		c, status, err := d.OpenTunnel(to, "")
		if err != nil || status != http.StatusForbidden {
			t.Errorf("%s: %d, %v", to, status, err)
			return
		}
		world.Abandon(c.Conn)
	}
	var flood sync.WaitGroup
	for part := range 4 {
		flood.Go(func() {
			for i := range 650 {
				denied(fmt.Sprintf("n%d.junk-%d.test:443", i, part*650+i))
			}
		})
	}
	flood.Wait()
	for i := range 20 {
		denied(fmt.Sprintf("part%d.meant.test:443", i))
	}
	link, _ := startPageOf(t, d)
	ctx := browserIn(t, d.World.Gateway)
	base := open(t, ctx, link)
	// How many have a record of their own depends on how long the flood took: a sandbox gets new ones.
	waitFor(t, ctx, "its sum among the newest requests", base+"/requests", `[...document.querySelectorAll("table.rows tbody tr")].slice(0, 3).some(e => /\*\.meant\.test:443.* × 1[5-8]/.test(e.textContent))`)
	waitFor(t, ctx, "one that has a record of its own", "", `[...document.querySelectorAll("td.dest")].slice(0, 6).some(e => e.textContent == "part0.meant.test:443")`)
	waitFor(t, ctx, "the domain with all twenty, before each of the flood", base+"/destinations", `document.querySelector("main").innerText.match(/meant\.test\s+20\s[^]*junk-0\.test\s+1\s/)`)
	waitFor(t, ctx, "the domain on the first view", base+"/", `document.querySelector("main").textContent.includes("meant.test")`)
}
