package proxy

// What a server has to leave of the descriptors of its process, and what a connection may
// take: a tunnel has two, one whose upstream does not answer up to five, and no sandbox has
// more than half of the connections.
const (
	descriptorsLeft  = 64
	descriptorsOfOne = 3
	connectionsLeast = 4
)

// ConnectionsWithin is how many connections, most at the most, a process may have that may
// have so many descriptors. With more, one sandbox could have all descriptors, and then
// nobody is accepted, and nothing is dialled.
func ConnectionsWithin(most int, descriptors uint64) int {
	if descriptors > 1<<30 { // unlimited
		return most
	}
	return min(most, max(connectionsLeast, (int(descriptors)-descriptorsLeft)/descriptorsOfOne))
}
