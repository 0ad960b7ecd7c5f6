package policy

import (
	_ "embed"
	"encoding/csv"
	"errors"
	"net/netip"
	"strings"
	"sync"
)

// metadataList says where clouds answer with instance data and credentials, one place a row:
// an address or a name, the cloud, the service, sources that say so, and the day on which the
// first source was last seen to say so. A row without that day is from an earlier list, and its
// source was not seen again.
//
//go:embed cloud/metadata.csv
var metadataList string

// A metadataSet is the places of the list. Names below one of its names are special too.
type metadataSet struct {
	addrs []netip.Addr
	names map[string]bool
}

var metadataServices = sync.OnceValues(func() (metadataSet, error) { return parseMetadata(metadataList) })

func parseMetadata(text string) (set metadataSet, err error) {
	lines, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		return set, err
	}
	if len(lines) < 2 || lines[0][0] != "Place" {
		return set, errors.New("no rows, or other columns")
	}
	set.names = map[string]bool{}
	for _, line := range lines[1:] {
		name, addr, err := ParseHost(line[0])
		switch {
		case err != nil:
			return set, err
		case addr.IsValid():
			set.addrs = append(set.addrs, addr)
		default:
			set.names[name] = true
		}
	}
	return set, nil
}
