package dns

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(lingering{m}) }

// lingering gives lookups that nobody waits for time to end.
type lingering struct{ *testing.M }

func (m lingering) Run() int {
	code := m.M.Run()
	for late := time.Now().Add(4 * defaultTotalTimeout); goleak.Find() != nil && time.Now().Before(late); {
		time.Sleep(10 * time.Millisecond)
	}
	return code
}
