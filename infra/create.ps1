#Requires -Version 7.2
<#
.SYNOPSIS
    Creates what celery-sqlbeat needs on Azure: a SQL database without passwords, and an identity that may use it.
.DESCRIPTION
    A resource group, a SQL server with Entra-only authentication and an Entra admin, one database, a user-assigned
    managed identity, the tables, and the role sqlbeat_runner (sql/mssql/grants.sql) with that identity in it.

    May be run again: what is there stays, what is missing is added, and the tier, the firewall and the network choice
    are brought to what the parameters say. Nothing is deleted, except firewall rules of this script whose address is no
    longer named.

    Whoever runs it must be allowed to create resources in the subscription and be the Entra admin, or in the group that
    is. Sign in first: Connect-AzAccount. No password exists; the token for the database stays in memory.
.PARAMETER SubscriptionId
    The subscription that pays for it.
.PARAMETER ResourceGroupName
    The resource group; it is created where it does not exist.
.PARAMETER Location
    The region.
.PARAMETER ServerName
    The name of the SQL server, unique in all of Azure. Default: made from the subscription and the resource group, so
    that it is the same whenever the script runs.
.PARAMETER DatabaseName
    The name of the database.
.PARAMETER IdentityName
    The name of the managed identity, and of its user in the database.
.PARAMETER EntraAdminName
    The display name of the Entra admin of the server, best a group. Default: whoever is signed in.
.PARAMETER EntraAdminObjectId
    The object id of that user, group or application.
.PARAMETER Tier
    Serverless scales with the load and is paid by the second; Provisioned always has all of its cores.
.PARAMETER VCores
    The most cores (Serverless), or the cores (Provisioned). docs/dba.md says how many are needed.
.PARAMETER BackupStorageRedundancy
    Where backups are kept.
.PARAMETER AllowIpAddress
    Addresses outside of Azure that may connect, for the firewall. Name your own to have the tables created.
.PARAMETER AllowAzureServices
    Lets everything inside of Azure through the firewall, other people's machines included; they still need an identity.
.PARAMETER SubnetId
    The resource id of a subnet: the server gets a private endpoint there, and none on the internet.
.PARAMETER SchemaFile
    A file with what `celery sqlbeat init --sql` prints, for a machine without celery-sqlbeat. Default: the command is
    asked.
.PARAMETER SkipSchema
    Leaves the tables, the role and its member to somebody else: for a machine that does not reach the private endpoint.
.PARAMETER OidcIssuer
    The issuer of a Kubernetes cluster with workload identity; its service account may then act as the managed identity.
.PARAMETER ServiceAccount
    That service account, as namespace:name.
.EXAMPLE
    ./create.ps1 -SubscriptionId $id -AllowIpAddress 203.0.113.7
.EXAMPLE
    ./create.ps1 -SubscriptionId $id -SubnetId $subnet.Id -Tier Provisioned -VCores 4 -WhatIf
.OUTPUTS
    One object: where the database is, and which identity may use it.
.LINK
    docs/dba.md
#>
[CmdletBinding(SupportsShouldProcess, DefaultParameterSetName = 'Firewall')]
param(
    [Parameter(Mandatory)]
    [guid] $SubscriptionId,

    [ValidatePattern('^[\w().-]{1,90}$')]
    [string] $ResourceGroupName = 'cristp-reltaskexec',

    [ValidateNotNullOrEmpty()]
    [string] $Location = 'west us2',

    [ValidatePattern('^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$')]
    [string] $ServerName,

    [ValidatePattern('^[A-Za-z][A-Za-z0-9_-]{0,127}$')]
    [string] $DatabaseName = 'sqlbeat',

    [ValidatePattern('^[A-Za-z0-9][A-Za-z0-9_-]{2,127}$')]
    [string] $IdentityName = 'sqlbeat-runner',

    [string] $EntraAdminName,

    [guid] $EntraAdminObjectId,

    [ValidateSet('Serverless', 'Provisioned')]
    [string] $Tier = 'Serverless',

    [ValidateRange(1, 128)]
    [int] $VCores = 2,

    [ValidateSet('Local', 'Zone', 'Geo', 'GeoZone')]
    [string] $BackupStorageRedundancy = 'Geo',

    [Parameter(ParameterSetName = 'Firewall')]
    [ipaddress[]] $AllowIpAddress = @(),

    [Parameter(ParameterSetName = 'Firewall')]
    [switch] $AllowAzureServices,

    [Parameter(Mandatory, ParameterSetName = 'PrivateEndpoint')]
    [ValidatePattern('/subnets/[^/]+$')]
    [string] $SubnetId,

    [string] $SchemaFile,

    [switch] $SkipSchema,

    [ValidatePattern('^https://')]
    [string] $OidcIssuer,

    [ValidatePattern('^[a-z0-9-]+:[a-z0-9.-]+$')]
    [string] $ServiceAccount
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'

. (Join-Path $PSScriptRoot 'parts/context.ps1')
. (Join-Path $PSScriptRoot 'parts/server.ps1')
. (Join-Path $PSScriptRoot 'parts/network.ps1')
. (Join-Path $PSScriptRoot 'parts/identity.ps1')
. (Join-Path $PSScriptRoot 'parts/schema.ps1')

if ([bool] $EntraAdminName -ne $PSBoundParameters.ContainsKey('EntraAdminObjectId')) {
    throw 'EntraAdminName and EntraAdminObjectId belong together: give both or none.'
}
if ([bool] $OidcIssuer -ne [bool] $ServiceAccount) {
    throw 'OidcIssuer and ServiceAccount belong together: give both or none.'
}
if ($SchemaFile -and -not (Test-Path -LiteralPath $SchemaFile -PathType Leaf)) {
    throw "There is no file $SchemaFile; write it with: celery sqlbeat init --sql > schema.sql"
}
$privateOnly = $PSCmdlet.ParameterSetName -eq 'PrivateEndpoint'

Assert-Command -Name 'Connect-AzAccount', 'New-AzSqlServer', 'New-AzUserAssignedIdentity' -Module 'Az'
if (-not $SkipSchema) {
    Assert-Command -Name 'Invoke-Sqlcmd' -Module 'SqlServer'
}
Select-Subscription -SubscriptionId $SubscriptionId
if (-not $ServerName) {
    $ServerName = Get-DefaultServerName -SubscriptionId $SubscriptionId -ResourceGroupName $ResourceGroupName
}
if (-not $EntraAdminName) {
    $signedIn = Get-SignedInPrincipal
    $EntraAdminName = $signedIn.Name
    $EntraAdminObjectId = $signedIn.ObjectId
}
$group = @{ ResourceGroupName = $ResourceGroupName }
$server = $group + @{ ServerName = $ServerName }

Confirm-ResourceGroup @group -Location $Location
$admin = @{ AdminName = $EntraAdminName; AdminObjectId = $EntraAdminObjectId }
Confirm-Server @server -Location $Location @admin -PrivateOnly:$privateOnly
$size = @{ Tier = $Tier; VCores = $VCores; BackupStorageRedundancy = $BackupStorageRedundancy }
Confirm-Database @server -DatabaseName $DatabaseName @size
if ($privateOnly) {
    Confirm-PrivateEndpoint @server -Location $Location -SubnetId $SubnetId
}
else {
    Confirm-Firewall @server -AllowIpAddress $AllowIpAddress -AllowAzureServices:$AllowAzureServices
}
$identity = Confirm-Identity @group -Location $Location -IdentityName $IdentityName
if ($OidcIssuer) {
    Confirm-FederatedCredential @group -IdentityName $IdentityName -Issuer $OidcIssuer -ServiceAccount $ServiceAccount
}

$hostName = "$ServerName.database.windows.net"
if ($SkipSchema) {
    Write-Verbose 'The tables, the role and its member are left to somebody else (-SkipSchema).'
}
elseif ($PSCmdlet.ShouldProcess("$hostName/$DatabaseName", "Create or upgrade the tables, and let $IdentityName use them")) {
    $schema = Get-SchemaScript -HostName $hostName -DatabaseName $DatabaseName -SchemaFile $SchemaFile
    $grants = Get-Content -Raw -LiteralPath (Join-Path $PSScriptRoot '../sql/mssql/grants.sql')
    $member = Get-MemberScript -IdentityName $IdentityName -ClientId $identity.ClientId
    Invoke-Script -HostName $hostName -DatabaseName $DatabaseName -Script $schema, $grants, $member
}

# Who logs in: in Kubernetes the service account, elsewhere the identity that the machine was given.
$login = if ($OidcIssuer) { 'identity=workload' } elseif ($identity) { "identity=managed&client_id=$($identity.ClientId)" } else { 'identity=managed' }
[pscustomobject] @{
    ResourceGroupName = $ResourceGroupName
    HostName          = $hostName
    DatabaseName      = $DatabaseName
    DatabaseUrl       = "mssql://$hostName/$DatabaseName`?$login"
    IdentityName      = $IdentityName
    ClientId          = if ($identity) { $identity.ClientId }
    TenantId          = if ($identity) { $identity.TenantId }
}
