# from: Envoy with claims in the metadata of a filter
# v0
# says: write it as allow in package egress
package envoy.authz

import input.attributes.metadataContext.filterMetadata["envoy.filters.http.jwt_authn"] as checked

default allow = false

allow {
	checked.payload.roles[_] == "keeper"
}
