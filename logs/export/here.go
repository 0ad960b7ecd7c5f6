package export

import (
	"os"

	"github.com/egressd/egressd/internal/version"
)

// Here returns the origin of events that this process exports. Host is empty if the machine has no name.
func Here() Origin {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	return Origin{Version: version.This().Version, Host: host}
}
