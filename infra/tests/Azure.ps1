# Empty stand-ins for the commands of Az and SqlServer, with the parameters that are used. Pester can only replace a
# command that exists, and the tests must run where these modules are not installed, and never reach Azure where they are.
Set-StrictMode -Version Latest

$commands = @{
    'Connect-AzAccount'                              = @()
    'Get-AzContext'                                  = @()
    'Set-AzContext'                                  = 'Subscription', 'Scope'
    'Get-AzADUser'                                   = @('SignedIn')
    'Get-AzADServicePrincipal'                       = @('ApplicationId')
    'Get-AzAccessToken'                              = @('ResourceUrl')
    'Get-AzResourceGroup'                            = @('Name')
    'New-AzResourceGroup'                            = 'Name', 'Location', 'Tag'
    'Remove-AzResourceGroup'                         = 'Name', 'Force'
    'Get-AzResource'                                 = 'ResourceGroupName', 'Tag'
    'Remove-AzResource'                              = 'ResourceId', 'Force'
    'Get-AzSqlServer'                                = 'ResourceGroupName', 'ServerName'
    'New-AzSqlServer'                                = 'ResourceGroupName', 'ServerName', 'Location', 'ExternalAdminName', 'ExternalAdminSID',
    'EnableActiveDirectoryOnlyAuthentication', 'MinimalTlsVersion', 'PublicNetworkAccess', 'Tags'
    'Set-AzSqlServer'                                = 'ResourceGroupName', 'ServerName', 'PublicNetworkAccess'
    'Get-AzSqlServerActiveDirectoryAdministrator'    = 'ResourceGroupName', 'ServerName'
    'Set-AzSqlServerActiveDirectoryAdministrator'    = 'ResourceGroupName', 'ServerName', 'DisplayName', 'ObjectId'
    'Get-AzSqlServerActiveDirectoryOnlyAuthentication' = 'ResourceGroupName', 'ServerName'
    'Enable-AzSqlServerActiveDirectoryOnlyAuthentication' = 'ResourceGroupName', 'ServerName'
    'Get-AzSqlDatabase'                              = 'ResourceGroupName', 'ServerName', 'DatabaseName'
    'New-AzSqlDatabase'                              = 'ResourceGroupName', 'ServerName', 'DatabaseName', 'Edition', 'ComputeGeneration', 'VCore',
    'ComputeModel', 'MinimumCapacity', 'AutoPauseDelayInMinutes', 'BackupStorageRedundancy', 'Tags'
    'Set-AzSqlDatabase'                              = 'ResourceGroupName', 'ServerName', 'DatabaseName', 'Edition', 'ComputeGeneration', 'VCore',
    'ComputeModel', 'MinimumCapacity', 'AutoPauseDelayInMinutes'
    'Get-AzSqlServerFirewallRule'                    = 'ResourceGroupName', 'ServerName'
    'New-AzSqlServerFirewallRule'                    = 'ResourceGroupName', 'ServerName', 'FirewallRuleName', 'StartIpAddress', 'EndIpAddress'
    'Remove-AzSqlServerFirewallRule'                 = 'ResourceGroupName', 'ServerName', 'FirewallRuleName', 'Force'
    'Get-AzPrivateEndpoint'                          = 'ResourceGroupName', 'Name'
    'New-AzPrivateEndpoint'                          = 'ResourceGroupName', 'Name', 'Location', 'Subnet', 'PrivateLinkServiceConnection', 'Tag'
    'New-AzPrivateLinkServiceConnection'             = 'Name', 'PrivateLinkServiceId', 'GroupId'
    'Get-AzVirtualNetworkSubnetConfig'               = @('ResourceId')
    'Get-AzPrivateDnsZone'                           = 'ResourceGroupName', 'Name'
    'New-AzPrivateDnsZone'                           = 'ResourceGroupName', 'Name', 'Tag'
    'Get-AzPrivateDnsVirtualNetworkLink'             = 'ResourceGroupName', 'ZoneName', 'Name'
    'New-AzPrivateDnsVirtualNetworkLink'             = 'ResourceGroupName', 'ZoneName', 'Name', 'VirtualNetworkId', 'Tag'
    'Get-AzPrivateDnsZoneGroup'                      = 'ResourceGroupName', 'PrivateEndpointName', 'Name'
    'New-AzPrivateDnsZoneGroup'                      = 'ResourceGroupName', 'PrivateEndpointName', 'Name', 'PrivateDnsZoneConfig'
    'New-AzPrivateDnsZoneConfig'                     = 'Name', 'PrivateDnsZoneId'
    'Get-AzUserAssignedIdentity'                     = 'ResourceGroupName', 'Name'
    'New-AzUserAssignedIdentity'                     = 'ResourceGroupName', 'Name', 'Location', 'Tag'
    'Get-AzFederatedIdentityCredential'              = 'ResourceGroupName', 'IdentityName', 'Name'
    'New-AzFederatedIdentityCredential'              = 'ResourceGroupName', 'IdentityName', 'Name', 'Issuer', 'Subject'
    'Invoke-Sqlcmd'                                  = 'ServerInstance', 'Database', 'AccessToken', 'Encrypt', 'AbortOnError', 'DisableVariables', 'Query'
}

foreach ($name in $commands.Keys) {
    $parameters = @($commands[$name] | ForEach-Object { "`$$_" }) -join ', '
    $body = "[CmdletBinding(SupportsShouldProcess)] param($parameters)"
    Set-Item -Path "function:global:$name" -Value ([scriptblock]::Create($body))
}
