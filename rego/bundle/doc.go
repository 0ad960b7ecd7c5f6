// Package bundle has policies that are distributed: it fetches a signed bundle
// from the server that the operator named, keeps the last good one on disk, and
// says when that one is too old to count. What a bundle holds, and whether it is
// signed, [rego.ReadBundle] says.
//
// What is fetched depends on nothing but the source: no variable of the
// environment, no cookie, no redirect to another server, and nothing that a
// sandbox sends. Whatever goes wrong leaves the last good bundle as it is, until
// it is stale; then [Feed.Guard] denies everything.
//
//	feed, err := bundle.Open(folder, owner, source) // with the last good one, if there is one
//	arrival, err := feed.Fetch(ctx)            // changes nothing
//	…                                          // compile arrival.Bundle, and put it in force
//	err = feed.Accept(arrival)                 // from now on it is the last good one
package bundle
