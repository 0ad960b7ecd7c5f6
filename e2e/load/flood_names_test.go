package load

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
)

// TestAFloodOfNewNames has one sandbox ask for ever new names, and another one for a few.
// All numbers are exact in the log and in what reads it, the flood takes few records, and the
// other sandbox has one for each denial. It is the same, and less, where the disk is nearly full.
func TestAFloodOfNewNames(t *testing.T) {
	for name, row := range map[string]struct {
		free          int64 // of the log's 64 MiB; 0: it is on the disk of the test
		burst, second int   // records of the flood
	}{
		"on a disk with space":     {0, 2000, 20 + 2*8},
		"on a disk that is scarce": {4 << 20, 20, 1 + 2},
	} {
		t.Run(name, func(t *testing.T) {
			d := world.NewDaemon(t, world.PolicyText(t, "P0")+"sandboxes: [{name: ci, token_file: ci.token}, {name: web, token_file: web.token}]\n")
			if row.free > 0 {
				mountScarce(t, d.Log, 64<<20, row.free)
			}
			d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
			key := strings.TrimSpace(d.ExpectExit(t, 0, "log", "verify", "--print-key", "--config", d.Config))
			began := time.Now()
			flood, few := floodNames(t, d, 3*time.Second)
			d.Stop(t)
			took := time.Since(began)
			records, err := d.Log.Since(0)
			if err != nil {
				t.Fatal(err)
			}
			times, number, size := map[string]int64{}, map[string]int{}, 0
			for i := range records {
				r := &records[i]
				if r.Decision == nil || r.Decision.Action != "deny" {
					continue
				}
				times[r.Sandbox] += r.Times()
				number[r.Sandbox]++
				if r.Sandbox == "ci" {
					size += len(d.Log.Lines[i]) + 1
				}
			}
			if times["ci"] != flood || times["web"] != few {
				t.Errorf("%d and %d were denied, and %v are recorded", flood, few, times)
			}
			most := row.burst + row.second*(int(took/time.Second)+2)
			if number["ci"] > most || size > most<<10 {
				t.Errorf("the flood has %d records of %d bytes, want at most %d records", number["ci"], size, most)
			}
			if int64(number["web"]) != few && row.free == 0 {
				t.Errorf("the other sandbox has %d records of %d denials", number["web"], few)
			}
			for _, p := range d.Log.Flawed() {
				t.Errorf("the audit log: %s", p)
			}
			world.BothVerify(t, d, 0, d.Log.Dir, key, "")
			readersCount(t, d, flood+few)
			t.Logf("%d denials in %d records, %d KiB", flood, number["ci"], size>>10)
		})
	}
}

// mountScarce has the log on a file system of its own of which little is free.
func mountScarce(t *testing.T, l *world.AuditLog, size, free int64) {
	t.Helper()
	if err := os.Mkdir(l.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", l.Dir, "tmpfs", 0, fmt.Sprintf("mode=700,size=%d", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Unmount(l.Dir, syscall.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(l.Dir, "ballast"), make([]byte, size-free), 0o600); err != nil {
		t.Fatal(err)
	}
}

// floodNames has sandbox ci ask for new names all the time, and web for one now and then.
func floodNames(t *testing.T, d *world.Daemon, lasts time.Duration) (flood, few int64) {
	t.Helper()
	var asked atomic.Int64
	over := make(chan struct{})
	var working sync.WaitGroup
	denied := func(to, credentials string) bool {
		c, status, err := d.OpenTunnel(to, credentials)
		if err != nil || status != http.StatusForbidden {
			t.Errorf("%s: %d, %v", to, status, err)
			return false
		}
		world.Abandon(c.Conn)
		return true
	}
	ci, web := world.Authorization("ci", "open-sesame"), world.Authorization("web", "another-secret")
	for range 4 {
		working.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if !denied(fmt.Sprintf("n%d.evil.test:443", asked.Add(1)), ci) {
					return
				}
			}
		})
	}
	for now := time.NewTicker(50 * time.Millisecond); time.Duration(few)*50*time.Millisecond < lasts || asked.Load() < 5000; few++ {
		<-now.C
		if !denied(fmt.Sprintf("w%d.other.test:443", few), web) {
			break
		}
	}
	close(over)
	working.Wait()
	return asked.Load(), few
}

// readersCount checks what the commands that read the log say of all denials.
func readersCount(t *testing.T, d *world.Daemon, want int64) {
	t.Helper()
	var summary struct{ Denied int64 }
	if err := json.Unmarshal([]byte(d.ExpectExit(t, 0, "log", "--summary", "--json", "--config", d.Config)), &summary); err != nil || summary.Denied != want {
		t.Errorf("egressd log --summary counts %d denials, want %d: %v", summary.Denied, want, err)
	}
	for format, count := range map[string]func(e map[string]any) any{
		"ocsf": func(e map[string]any) any { return e["count"] },
		"ecs":  func(e map[string]any) any { return partOf(e, "egressd")["count"] },
	} {
		counted := int64(0)
		for line := range strings.Lines(d.ExpectExit(t, 0, "log", "export", "--format", format, "verdict:deny", "--config", d.Config)) {
			var event map[string]any
			if err := json.Unmarshal([]byte(line), &event); err != nil {
				t.Fatal(err)
			}
			if n, summed := count(event).(float64); summed {
				counted += int64(n)
			} else {
				counted++
			}
		}
		if counted != want {
			t.Errorf("the export as %s counts %d denials, want %d", format, counted, want)
		}
	}
}

// partOf is a member of an event that is an object, or nil.
func partOf(event map[string]any, name string) map[string]any {
	inner, _ := event[name].(map[string]any)
	return inner
}
